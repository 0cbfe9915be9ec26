import { eq, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { Database } from '../database/database.ts';
import { auditExports } from '../database/history-schema.ts';
import { auditEvents } from '../database/schema.ts';

/**
 * Events are in the order of their rows, because a clock can go back. SQLite gives a row a higher number than all
 * others have, and the last one never goes.
 */
const rowOf = (eventId: string) => sql`(select rowid from ${auditEvents} where id = ${eventId})`;

/** Row up to which all events are exported; null before the first export. */
export const EXPORTED_ROW = sql`(select e.rowid from ${auditEvents} e join ${auditExports} x on x.event_id = e.id)`;

/** Events of all tenants after this one, the oldest first. @returns or NOT_FOUND for an unknown one */
export async function eventsAfter(
  db: Database,
  after: string | null,
  limit: number,
): Promise<Result<(typeof auditEvents.$inferSelect)[], Failure>> {
  if (after !== null && !(await hasEvent(db, after))) return fail({ code: 'NOT_FOUND' });
  const rows = await db
    .select()
    .from(auditEvents)
    .where(after === null ? undefined : sql`rowid > ${rowOf(after)}`)
    .orderBy(sql`rowid`)
    .limit(limit);
  return ok(rows);
}

async function hasEvent(db: Database, id: string): Promise<boolean> {
  const found = await db.select({ id: auditEvents.id }).from(auditEvents).where(eq(auditEvents.id, id));
  return found.length > 0;
}

/** The event up to which the log is exported; null before the first export. */
export async function exportedUntil(db: Database): Promise<string | null> {
  const [row] = await db.select({ eventId: auditExports.eventId }).from(auditExports);
  return row?.eventId ?? null;
}

/** Records that a copy of all events up to this one exists. It never goes back. @returns or NOT_FOUND */
export async function confirmExport(
  db: Database,
  eventId: string,
  now: Date,
): Promise<Result<void, Failure>> {
  if (!(await hasEvent(db, eventId))) return fail({ code: 'NOT_FOUND' });
  const row = { id: 'audit' as const, eventId, updatedAt: now };
  await db
    .insert(auditExports)
    .values(row)
    .onConflictDoUpdate({
      target: auditExports.id,
      set: { eventId, updatedAt: now },
      setWhere: sql`coalesce(${EXPORTED_ROW}, 0) < ${rowOf(eventId)}`,
    });
  return ok(undefined);
}
