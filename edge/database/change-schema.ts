import { index, integer, sqliteTable, text } from 'drizzle-orm/sqlite-core';
import {
  type ApplyOptions,
  type AuditActor,
  CHANGE_STATES,
  type ChangeApproval,
  type ChangePlan,
  created,
  type StoredApplication,
  type StoredRehearsal,
  timestamp,
  updated,
} from './column-types.ts';
import { projects, users } from './schema.ts';

/** Changes of the schema of `main`: a plan that is rehearsed, approved, applied and undone. */
export const changes = sqliteTable(
  'changes',
  {
    id: text('id').primaryKey(),
    projectId: text('project_id')
      .notNull()
      .references(() => projects.id, { onDelete: 'cascade' }),
    tenantId: text('tenant_id').notNull(),
    state: text('state', { enum: CHANGE_STATES }).notNull(),
    /** The state before an undo, to which it goes back if it fails; null otherwise. */
    formerState: text('former_state', { enum: CHANGE_STATES }),
    /** The schema of `main` was another one than that of the plan when it was last compared. */
    stale: integer('stale', { mode: 'boolean' }).notNull().default(false),
    /** The branch that the statements come from, which may be deleted since; null: they were given. */
    sourceBranchId: text('source_branch_id'),
    sourceName: text('source_name'),
    /** The given statements; null: those of the schema difference. */
    sql: text('sql'),
    plan: text('plan', { mode: 'json' }).$type<ChangePlan>().notNull(),
    /** SHA-256 of the plan, hexadecimal. */
    digest: text('digest').notNull(),
    rehearsal: text('rehearsal', { mode: 'json' }).$type<StoredRehearsal>(),
    approvals: text('approvals', { mode: 'json' }).$type<ChangeApproval[]>().notNull().default([]),
    options: text('options', { mode: 'json' }).$type<ApplyOptions>(),
    /** When a scheduled change is due; null in any other state. */
    dueAt: timestamp('due_at'),
    /** Who has applied it, or scheduled that. */
    applier: text('applier', { mode: 'json' }).$type<AuditActor>(),
    /** Steps that are applied, and the schema of `main` that they have left; null: that of the plan. */
    done: integer('done').notNull().default(0),
    schemaDone: text('schema_done'),
    application: text('application', { mode: 'json' }).$type<StoredApplication>(),
    /** Snapshot of `main` before the first step. */
    snapshotId: text('snapshot_id'),
    /** Milliseconds for which the pooled clients of `main` were held for it. */
    pausedMs: integer('paused_ms'),
    /** The last job. */
    jobId: text('job_id'),
    createdBy: text('created_by')
      .notNull()
      .references(() => users.id),
    /** The author may see the data of `main`, also if members get masked data only. */
    authorSeesData: integer('author_sees_data', { mode: 'boolean' }).notNull(),
    createdAt: created(),
    updatedAt: updated(),
  },
  (t) => [
    index('changes_by_project').on(t.projectId, t.createdAt, t.id),
    index('changes_due').on(t.projectId, t.dueAt),
  ],
);

export type ChangeRow = typeof changes.$inferSelect;
