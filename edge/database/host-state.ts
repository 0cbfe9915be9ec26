import { integer, text } from 'drizzle-orm/sqlite-core';
import type { HostDescription } from '../../shared/protocol/host-description.ts';
import { timestamp } from './columns.ts';

/** What a host reported at its last reconciliation; null before the first one. */
export const hostState = () => ({
  /** Free bytes of the volume with PostgreSQL's data. */
  freeBytes: integer('free_bytes'),
  description: text('description', { mode: 'json' }).$type<HostDescription>(),
  describedAt: timestamp('described_at'),
});
