import { index, integer, primaryKey, sqliteTable, text, uniqueIndex } from 'drizzle-orm/sqlite-core';
import { timestamp } from './columns.ts';

/** One row per used `Idempotency-Key`, with its job: a repeated request waits for the same job. */
export const idempotencyKeys = sqliteTable(
  'idempotency_keys',
  {
    tenantId: text('tenant_id').notNull(),
    userId: text('user_id').notNull(),
    path: text('path').notNull(),
    key: text('key').notNull(),
    bodyHash: text('body_hash').notNull(),
    jobId: text('job_id').notNull(),
    status: integer('status'),
    body: text('body', { mode: 'json' }).$type<Record<string, unknown>>(),
    expiresAt: timestamp('expires_at').notNull(),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.userId, t.path, t.key] }),
    uniqueIndex('idempotency_by_job').on(t.jobId),
    index('idempotency_by_expiry').on(t.expiresAt),
  ],
);
