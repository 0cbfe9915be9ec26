import { BoundedMap } from '../bounded-map.ts';

/** In a bookmark's place: the read goes to the primary. A response to a write has it. */
export const NEWEST = 'primary';

/** For how long a tenant that has written reads from the primary if its client sends no bookmark. */
const AFTER_WRITE_MS = 10_000;
const REMEMBERED_TENANTS = 10_000;

/** Until when the tenants that have written here read from the primary: Unix milliseconds. */
const writers = new BoundedMap<string, number>(REMEMBERED_TENANTS);

export const noteWrite = (tenantId: string, now: number): void => writers.set(tenantId, now + AFTER_WRITE_MS);

function hasJustWritten(tenantId: string, now: number): boolean {
  const until = writers.get(tenantId);
  // The second condition: the clock was set back.
  return until !== undefined && now < until && until <= now + AFTER_WRITE_MS;
}

/**
 * Reads from the nearest replica of D1 that is as new as the client's bookmark. Without a bookmark it is any replica, or the
 * primary if the tenant has written in this isolate within the last seconds.
 */
export function nearestCopy(
  database: D1Database,
  tenantId: string,
  bookmark: string | undefined,
  now: number,
): D1DatabaseSession {
  if (bookmark !== undefined && bookmark !== NEWEST) return database.withSession(bookmark);
  const isNewest = bookmark === NEWEST || hasJustWritten(tenantId, now);
  return database.withSession(isNewest ? 'first-primary' : 'first-unconstrained');
}
