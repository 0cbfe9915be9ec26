import { csvOf } from '../../data/csv.ts';
import type { AuditEvent } from '../../data/resources.ts';

const COLUMNS = [
  'created_at',
  'name',
  'actor_type',
  'actor_id',
  'actor_email',
  'project_id',
  'branch_id',
  'ip',
  'user_agent',
  'request_id',
  'metadata',
] as const;

/** The events as CSV. */
export const fileOf = (events: readonly AuditEvent[]): string =>
  csvOf(
    COLUMNS,
    events.map((event) => COLUMNS.map((column) => event[column])),
  );
