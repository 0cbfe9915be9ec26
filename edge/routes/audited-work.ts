import { eq } from 'drizzle-orm';
import type { FailureCode } from '../../shared/failures.ts';
import type { RowId } from '../../shared/protocol/tables.ts';
import { type AuditName, auditEvent, boundedMetadata } from '../audit/audit-event.ts';
import type { Actor } from '../database/column-types.ts';
import { isOfTenant } from '../database/conditions.ts';
import type { Database } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { auditEvents, projectBranches } from '../database/schema.ts';
import { ApiError, unwrap } from '../errors.ts';

/** Failures of a host after which nothing was changed. After any other one the statement may have run. */
const REFUSALS: ReadonlySet<FailureCode> = new Set([
  'LOGIN_REFUSED',
  'STATEMENT_REFUSED',
  'TIME_LIMIT_REACHED',
  'ROW_NOT_FOUND',
  'ROW_CHANGED',
  'CHANGES_CONFLICT',
  'NOT_FOUND',
  'VALIDATION_FAILED',
  'HOST_BUSY',
  'HOST_UPGRADE_REQUIRED',
  'PROJECT_BUSY',
]);

/** What is done in a branch's database. The metadata never has a value of a row. */
interface Work {
  name: AuditName;
  projectId: string;
  branchId: string;
  metadata: Record<string, unknown>;
  /** Refusals that do not remove the event, because the work may have read data until then. Default: none. */
  keptAfter?: readonly FailureCode[];
}

/**
 * Runs a client's work on the host with an audit event. The event is stored first, so that no work lacks one,
 * and is removed if the host refused the work. If the outcome is unknown, or the gateway stops in between,
 * the event stays.
 * @param run returns the result, and what the event says about it; null if nothing was done
 * @throws ApiError NOT_FOUND if the branch has moved to another tenant since it was read, or what `run`
 *   throws
 */
export async function auditedWork<T>(
  db: Database,
  actor: Actor,
  { name, projectId, branchId, metadata, keptAfter = [] }: Work,
  run: () => Promise<{ result: T; metadata: Record<string, unknown> | null }>,
): Promise<T> {
  const about = { id: crypto.randomUUID(), projectId, branchId, metadata };
  const event = auditEvent(name, actor, about, new Date());
  const isEvent = eq(auditEvents.id, event.id);
  const audited = await guardedWrite(db, {
    decides: [auditEvents, event],
    require: [[isOfTenant(projectBranches, branchId, actor.tenantId), 'NOT_FOUND']],
  });
  unwrap(audited);
  try {
    const done = await run();
    if (done.metadata === null) await db.delete(auditEvents).where(isEvent);
    else if (done.metadata !== metadata)
      await db
        .update(auditEvents)
        .set({ metadata: boundedMetadata(done.metadata) })
        .where(isEvent);
    return done.result;
  } catch (error) {
    const failure = error instanceof ApiError ? error.failure.code : null;
    if (failure && keptAfter.includes(failure))
      await db
        .update(auditEvents)
        .set({ metadata: boundedMetadata({ ...metadata, failure }) })
        .where(isEvent);
    else if (failure && REFUSALS.has(failure)) await db.delete(auditEvents).where(isEvent);
    throw error;
  }
}

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
