import type { RowId } from '../../shared/protocol/tables.ts';
import type { Database } from '../database/database.ts';
import type { Actor } from './actor.ts';
import { auditedWork } from './audited-work.ts';

/** Bounds names and keys, which are texts of the request. */
const TEXT_MAX = 200;

/** What is changed: the names and the keys, never a value. */
interface RowChange {
  name: 'row.changed' | 'row.deleted';
  projectId: string;
  branchId: string;
  schema: string;
  table: string;
  /** Only for `row.changed`. */
  column?: string;
  primaryKey: string[];
  ids: RowId[];
}

/** Cuts a text of the request. */
export const short = <T>(value: T) => (typeof value === 'string' ? value.slice(0, TEXT_MAX) : value);

const metadataOf = ({ schema, table, column, primaryKey, ids }: RowChange) => ({
  schema: short(schema),
  table: short(table),
  ...(column !== undefined && { column: short(column) }),
  primary_key: primaryKey.map(short),
  ids: ids.map((id) => id.map(short)),
});

/**
 * Runs a change of rows on the host with an audit event; see `auditedWork`.
 * @param run returns the result and the keys of the rows that it changed
 */
export const auditedRowChange = <T>(
  db: Database,
  actor: Actor,
  change: RowChange,
  run: () => Promise<{ result: T; changed: RowId[] }>,
): Promise<T> => {
  const metadata = metadataOf(change);
  return auditedWork(db, actor, { ...change, metadata }, async () => {
    const { result, changed } = await run();
    const isWhole = changed.length === change.ids.length;
    if (changed.length === 0) return { result, metadata: null };
    return { result, metadata: isWhole ? metadata : metadataOf({ ...change, ids: changed }) };
  });
};
