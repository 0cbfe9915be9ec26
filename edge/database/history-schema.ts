import { index, sqliteTable, text } from 'drizzle-orm/sqlite-core';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import { created, updated } from './column-types.ts';
import { jobs, projects } from './schema.ts';

/** Results of comparisons that were jobs, for a week. */
export const differences = sqliteTable(
  'differences',
  {
    jobId: text('job_id')
      .primaryKey()
      .references(() => jobs.id, { onDelete: 'cascade' }),
    projectId: text('project_id')
      .notNull()
      .references(() => projects.id, { onDelete: 'cascade' }),
    result: text('result', { mode: 'json' }).$type<MethodResult<'branch.diff'>>().notNull(),
    createdAt: created(),
  },
  (t) => [index('differences_by_project').on(t.projectId, t.createdAt)],
);

/** One row: up to which event the operator has a copy of the audit log. */
export const auditExports = sqliteTable('audit_exports', {
  id: text('id', { enum: ['audit'] }).primaryKey(),
  /** The events are in the order of their rows. This one stays, so that its place is known. */
  eventId: text('event_id').notNull(),
  updatedAt: updated(),
});
