import type { MiddlewareHandler } from 'hono';
import { BoundedMap } from '../bounded-map.ts';
import { ApiError } from '../errors.ts';
import { isReading } from '../rate-limits/buckets.ts';
import { type AppEnv, bookmarkOf } from './context.ts';

/** In a bookmark's place: the read goes to the primary. A response to a write has it. */
const NEWEST = 'primary';

/** For how long a tenant that has written reads from the primary if its client sends no bookmark. */
const AFTER_WRITE_MS = 10_000;
const REMEMBERED_TENANTS = 10_000;

/** Until when the tenants that have written here read from the primary: Unix milliseconds. */
const writers = new BoundedMap<string, number>(REMEMBERED_TENANTS);

const noteWrite = (tenantId: string, now: number): void => writers.set(tenantId, now + AFTER_WRITE_MS);

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

/** `NEWEST`, or what a response had. D1 describes the form of its bookmarks nowhere. */
const FORM = /^[0-9A-Za-z-]{1,100}$/;

/**
 * Lets a client read what it has written although reads may be of a replica: a response has a bookmark, and a read with it
 * is of no older state.
 * @throws ApiError VALIDATION_FAILED
 */
export const passBookmark: MiddlewareHandler<AppEnv> = async (c, next) => {
  const tenantId = c.var.principal?.tenantId;
  if (tenantId === undefined) return next();
  if (!isReading(c.req.method)) {
    noteWrite(tenantId, Date.now());
    await next();
    // Again, because a write can take longer than it is remembered.
    noteWrite(tenantId, Date.now());
    c.res.headers.set('X-Branchgate-Bookmark', NEWEST);
    return;
  }
  const sent = bookmarkOf(c);
  if (sent !== undefined && !FORM.test(sent)) {
    const message = 'must be the bookmark of a response';
    throw new ApiError('VALIDATION_FAILED', { details: [{ path: 'X-Branchgate-Bookmark', message }] });
  }
  await next();
  // A read that takes long becomes a job, which the client reads next.
  const isJob = c.res.status === 202;
  if (isJob) noteWrite(tenantId, Date.now());
  const bookmark = isJob ? NEWEST : (c.var.nearestCopy?.getBookmark() ?? sent);
  if (bookmark !== undefined) c.res.headers.set('X-Branchgate-Bookmark', bookmark);
};
