import { eq, sql } from 'drizzle-orm';
import type { FailureCode } from '../../shared/failures.ts';
import type { RowId } from '../../shared/protocol/tables.ts';
import { type Database, hasChanged, insertIf } from '../database/database.ts';
import { auditEvents, projectBranches } from '../database/schema.ts';
import { ApiError } from '../errors.ts';
import type { Actor } from './actor.ts';
import { auditEvent } from './audit-event.ts';

/** Bounds names and keys, which are texts of the request. */
const TEXT_MAX = 200;

/** Failures of a host after which nothing was changed. After any other one the statement may have run. */
const REFUSALS: ReadonlySet<FailureCode> = new Set([
  'STATEMENT_REFUSED',
  'ROW_NOT_FOUND',
  'ROW_CHANGED',
  'NOT_FOUND',
  'VALIDATION_FAILED',
  'HOST_BUSY',
]);

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

const short = <T>(value: T) => (typeof value === 'string' ? value.slice(0, TEXT_MAX) : value);

const metadataOf = ({ schema, table, column, primaryKey, ids }: RowChange) => ({
  schema: short(schema),
  table: short(table),
  ...(column !== undefined && { column: short(column) }),
  primary_key: primaryKey.map(short),
  ids: ids.map((id) => id.map(short)),
});

/**
 * Runs a change of rows on the host with an audit event. The event is stored first, so that no change lacks one, and is
 * removed if the host refused the change. If the outcome is unknown, or the gateway stops in between, the event stays.
 * @param run returns the result and the keys of the rows that it changed
 * @throws ApiError NOT_FOUND if the branch has moved to another tenant since it was read, or what `run` throws
 */
export async function auditedRowChange<T>(
  db: Database,
  actor: Actor,
  change: RowChange,
  run: () => Promise<{ result: T; changed: RowId[] }>,
): Promise<T> {
  const { name, projectId, branchId } = change;
  const event = auditEvent(
    name,
    actor,
    { id: crypto.randomUUID(), projectId, branchId, metadata: metadataOf(change) },
    new Date(),
  );
  const isEvent = eq(auditEvents.id, event.id);
  const isOfTenant = sql`exists (select 1 from ${projectBranches}
    where id = ${branchId} and tenant_id = ${actor.tenantId})`;
  if (!hasChanged(await insertIf(db, auditEvents, event, isOfTenant))) throw new ApiError('NOT_FOUND');
  try {
    const { result, changed } = await run();
    if (changed.length === 0) await db.delete(auditEvents).where(isEvent);
    else if (changed.length < change.ids.length) {
      const metadata = metadataOf({ ...change, ids: changed });
      await db.update(auditEvents).set({ metadata }).where(isEvent);
    }
    return result;
  } catch (error) {
    if (error instanceof ApiError && REFUSALS.has(error.failure.code)) {
      await db.delete(auditEvents).where(isEvent);
    }
    throw error;
  }
}
