import { sqliteTable, text } from 'drizzle-orm/sqlite-core';
import type { TableProgress } from '../../shared/project/job.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import {
  created,
  FOLLOW_RECORD_STATES,
  type FollowedSource,
  type RecordedProblem,
  timestamp,
  updated,
} from './column-types.ts';
import { jobs, projects } from './schema.ts';

/** The sources of imports and of copies that are to follow, until their jobs have ended. */
export const importSources = sqliteTable('import_sources', {
  jobId: text('job_id')
    .primaryKey()
    .references(() => jobs.id, { onDelete: 'cascade' }),
  projectId: text('project_id')
    .notNull()
    .references(() => projects.id, { onDelete: 'cascade' }),
  /**
   * The URL with its password, sealed with AES-256-GCM. Associated data: `import_source`, job id, key id.
   */
  keyId: text('key_id').notNull(),
  sealedUrl: text('sealed_url').notNull(),
  /** What the host has copied; null until then. */
  copied: text('copied', { mode: 'json' }).$type<MethodResult<'transfer.copy'>>(),
  createdAt: created(),
});

/** What a project follows, or has followed last. `publication`: one that was there; null: the host made it. */
export const follows = sqliteTable('follows', {
  projectId: text('project_id')
    .primaryKey()
    .references(() => projects.id, { onDelete: 'cascade' }),
  branchId: text('branch_id').notNull(),
  tenantId: text('tenant_id').notNull(),
  jobId: text('job_id').notNull(),
  state: text('state', { enum: FOLLOW_RECORD_STATES }).notNull(),
  source: text('source', { mode: 'json' }).$type<FollowedSource>().notNull(),
  publication: text('publication'),
  tables: text('tables', { mode: 'json' }).$type<TableProgress[]>().notNull().default([]),
  problem: text('problem', { mode: 'json' }).$type<RecordedProblem>(),
  /** By the clock of the host, of the newest report. */
  observedAt: timestamp('observed_at'),
  createdAt: created(),
  updatedAt: updated(),
});

export type FollowRow = typeof follows.$inferSelect;
