import type { MiddlewareHandler } from 'hono';
import { FAILURES, retryAfterOf } from '../../shared/failures.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { type LimitDecision, rateLimited, sendRefusals } from '../rate-limits/limiter-client.ts';
import { LIMITS } from '../rate-limits/limits.ts';
import { readSettings } from '../settings.ts';
import { type AppContext, type AppEnv, connectingIp } from './context.ts';
import { countRequest } from './limits.ts';
import { renderFailure } from './render-failure.ts';

/** Nothing was counted, so the response says that nothing is left until the time to try again. */
function uncounted(c: AppContext): LimitDecision {
  const retryAfter = retryAfterOf('LIMITER_UNAVAILABLE') ?? 0;
  if (c.res.status !== FAILURES.LIMITER_UNAVAILABLE.status) {
    c.res.headers.delete('WWW-Authenticate');
    c.res = renderFailure(c, { code: 'LIMITER_UNAVAILABLE' });
  }
  const limit = LIMITS[c.var.limitBucket.limit].max(readSettings(c.env));
  const resetAt = Math.ceil(Date.now() / 1000) + retryAfter;
  return { admitted: true, limit, remaining: 0, resetAt, retryAfter };
}

/**
 * Sets the rate limit headers on every response, including errors, and replaces responses over the limit with
 * 429.
 */
export const limitRequests: MiddlewareHandler<AppEnv> = async (c, next) => {
  await next();
  // Unauthenticated requests are counted by address.
  if (c.res.status === 401) countRequest(c, c.var.failures ?? bucketOf.failedAuthentication(connectingIp(c)));
  else if (!c.var.limitDecision) countRequest(c, bucketOf.public(connectingIp(c)));
  const decision = await c.var.limitDecision.catch(() => uncounted(c));
  if (!decision.admitted && c.res.status !== 429) {
    // Hono copies the headers of the replaced response, but this one belongs to a 401 only.
    c.res.headers.delete('WWW-Authenticate');
    c.res = renderFailure(c, rateLimited(decision));
  }
  if (c.res.status === 429) c.executionCtx.waitUntil(sendRefusals(c.env));
  const { headers } = c.res;
  headers.set('X-RateLimit-Limit', String(decision.limit));
  headers.set('X-RateLimit-Remaining', String(decision.remaining));
  headers.set('X-RateLimit-Reset', String(decision.resetAt));
};
