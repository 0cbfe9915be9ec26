import type { MiddlewareHandler } from 'hono';
import { renderFailure } from '../api/failure-envelope.ts';
import { type AppContext, type AppEnv, connectingIp } from '../app-env.ts';
import { type Bucket, bucketOf, isReading } from './buckets.ts';
import { admit, consumeOrFail, rateLimited } from './enforce-limit.ts';

/** Begins to count the request; `admission` waits for the verdict. */
export function countRequest(c: AppContext, charge: Bucket): void {
  const verdict = consumeOrFail(c.env, charge);
  // Who waits for it hears of a failure; when nobody gets that far, it is no unhandled one.
  verdict.catch(() => {});
  c.set('limitDecision', verdict);
}

/** @throws ApiError RATE_LIMITED, LIMITER_UNAVAILABLE */
export const requireAdmission = async (c: AppContext): Promise<void> => admit(await c.var.limitDecision);

/** Charges what the request does beside being a request. @throws ApiError RATE_LIMITED, LIMITER_UNAVAILABLE */
export async function enforceRequestLimit(c: AppContext, charge: Bucket): Promise<void> {
  countRequest(c, charge);
  await requireAdmission(c);
}

/**
 * Ids that name no project would each have a count of its own: they are charged to the tenant instead.
 * @throws ApiError RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function countUnknownProject(c: AppContext): Promise<void> {
  await enforceRequestLimit(c, bucketOf.tenant(c.var.principal.tenantId, { method: c.req.method, path: '' }));
}

/**
 * What changes something waits until it is admitted. What reads goes on beside the count, because both are trips
 * at the edge; it calls `admission` before anything with an effect (`inProject` does).
 */
export const enforceBeforeWrites: MiddlewareHandler<AppEnv> = async (c, next) => {
  if (!isReading(c.req.method)) await requireAdmission(c);
  await next();
};

/** Puts the count on every answer, errors too, and sees that nobody gets one who is over the limit. */
export const limitRequests: MiddlewareHandler<AppEnv> = async (c, next) => {
  await next();
  // Who could not be told apart is counted by address.
  if (c.res.status === 401) countRequest(c, bucketOf.failedAuthentication(connectingIp(c)));
  else if (!c.var.limitDecision) countRequest(c, bucketOf.public(connectingIp(c)));
  const verdict = await c.var.limitDecision;
  if (!verdict.admitted && c.res.status !== 429) {
    // Hono keeps the headers of the answer that is replaced; this one is a 401's alone.
    c.res.headers.delete('WWW-Authenticate');
    c.res = renderFailure(c, rateLimited(verdict));
  }
  const { headers } = c.res;
  headers.set('X-RateLimit-Limit', String(verdict.limit));
  headers.set('X-RateLimit-Remaining', String(verdict.remaining));
  headers.set('X-RateLimit-Reset', String(verdict.resetAt));
};
