import { index, integer, sqliteTable, text } from 'drizzle-orm/sqlite-core';
import { KEPT_KINDS } from '../../shared/branch/snapshot.ts';
import { created, timestamp } from './columns.ts';
import { projects } from './schema.ts';

/** A rule of a deleted branch, without its id. */
export interface KeptRule {
  cidr: string;
  description: string | null;
  source: 'manual' | 'creator_ip';
}

/** Closed databases of a project: snapshots, and the databases of deleted branches. */
export const snapshots = sqliteTable(
  'snapshots',
  {
    id: text('id').primaryKey(),
    projectId: text('project_id')
      .notNull()
      .references(() => projects.id, { onDelete: 'cascade' }),
    /** The branch that it was taken of, with its name then; the branch may be deleted since. */
    branchId: text('branch_id').notNull(),
    branchName: text('branch_name').notNull(),
    name: text('name'),
    kind: text('kind', { enum: KEPT_KINDS }).notNull(),
    /** `making`: its job is not done. */
    status: text('status', { enum: ['making', 'ready'] }).notNull(),
    independent: integer('independent', { mode: 'boolean' }).notNull().default(false),
    sizeBytes: integer('size_bytes').notNull().default(0),
    /** Of the last measurement; null where the host cannot measure them. */
    ownBytes: integer('own_bytes'),
    sharedBytes: integer('shared_bytes'),
    /** The rules of a deleted branch. */
    rules: text('rules', { mode: 'json' }).$type<KeptRule[]>().notNull().default([]),
    takenAt: timestamp('taken_at').notNull(),
    /** Null: it is kept until it is deleted. */
    expiresAt: timestamp('expires_at'),
    tenantId: text('tenant_id').notNull(),
    createdAt: created(),
  },
  (t) => [
    index('snapshots_by_project').on(t.projectId, t.createdAt, t.id),
    index('snapshots_by_branch').on(t.branchId),
  ],
);
