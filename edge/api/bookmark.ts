import type { MiddlewareHandler } from 'hono';
import { type AppEnv, bookmarkOf } from '../app-env.ts';
import { NEWEST, noteWrite } from '../database/near-reads.ts';
import { ApiError } from '../errors.ts';
import { isReading } from '../rate-limits/buckets.ts';

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
