import type { MiddlewareHandler } from 'hono';
import { BoundedMap } from '../bounded-map.ts';
import { type Database, openDatabase } from '../database/database.ts';
import { ApiError } from '../errors.ts';
import { isReading } from '../rate-limits/buckets.ts';
import type { AppContext, AppEnv } from './context.ts';

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
 * Reads from the nearest replica of D1 that is as new as the client's bookmark. Without a bookmark it is any
 * replica, or the primary if the tenant has written in this isolate within the last seconds.
 */
function nearestCopy(
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
 * Lets a client read what it has written although reads may be of a replica: a response has a bookmark, and a
 * read with it is of no older state.
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

/** What the client has seen or written, from the header of an earlier response. */
const bookmarkOf = (context: AppContext): string | undefined => context.req.header('x-branchgate-bookmark');

/**
 * Whether the request only shows records, to a caller whose right to see them is in no record that it reads:
 * the role is of the primary (`materialize`, `machineRecord`), but whom a project is shared with is not. A
 * project that has just moved to another tenant must show no rows, and the trip to its host takes longer than
 * that to the primary.
 */
const mayReadReplica = ({ req, var: { reach, isChange, showsRows } }: AppContext): boolean =>
  isReading(req.method) && reach === 'all' && !isChange && !showsRows;

/** For what must be the newest state whatever the request is. */
export const primaryOf = (context: AppContext): Database => openDatabase(context.env.DB);

/** The database of this request: the primary, or the nearest copy where that is enough. */
export function databaseOf(context: AppContext): Database {
  if (!mayReadReplica(context)) return primaryOf(context);
  if (!context.var.nearestCopy) {
    const { tenantId } = context.var.principal;
    context.set('nearestCopy', nearestCopy(context.env.DB, tenantId, bookmarkOf(context), Date.now()));
  }
  return openDatabase(context.var.nearestCopy);
}
