import type { MiddlewareHandler } from 'hono';
import { renderFailure } from '../api/failure-envelope.ts';
import { type AppContext, type AppEnv, connectingIp } from '../app-env.ts';
import { ApiError } from '../errors.ts';
import type { Env } from '../settings.ts';
import { type Charge, chargeOf, isReading } from './buckets.ts';
import { take, type Verdict } from './consume.ts';

const taken = (env: Env, charge: Charge): Promise<Verdict> =>
  take(env, charge).catch((error: Error) => {
    throw new ApiError('LIMITER_UNAVAILABLE', undefined, error.message);
  });

/** Begins to count the request; `admission` waits for the verdict. */
export function count(c: AppContext, charge: Charge): void {
  const verdict = taken(c.env, charge);
  // Who waits for it hears of a failure; when nobody gets that far, it is no unhandled one.
  verdict.catch(() => {});
  c.set('verdict', verdict);
}

const refusal = ({ retryAfter }: Verdict) => ({
  code: 'RATE_LIMITED' as const,
  fields: { retry_after: retryAfter },
});

function admit(verdict: Verdict): void {
  if (!verdict.admitted) throw ApiError.of(refusal(verdict));
}

/** @throws ApiError RATE_LIMITED, LIMITER_UNAVAILABLE */
export const admission = async (c: AppContext): Promise<void> => admit(await c.var.verdict);

/** Charges what the request does beside being a request. @throws ApiError RATE_LIMITED, LIMITER_UNAVAILABLE */
export async function chargeAction(c: AppContext, charge: Charge): Promise<void> {
  count(c, charge);
  await admission(c);
}

/**
 * Counts something other than the request itself, whose answer goes on telling of the request's own limit.
 * @throws ApiError LIMITER_UNAVAILABLE
 */
export const isWithin = async (c: AppContext, charge: Charge): Promise<boolean> =>
  (await taken(c.env, charge)).admitted;

/** @throws ApiError RATE_LIMITED, LIMITER_UNAVAILABLE */
export const chargeBeside = async (c: AppContext, charge: Charge): Promise<void> =>
  admit(await taken(c.env, charge));

/**
 * Ids that name no project would each have a count of its own: they are charged to the tenant instead.
 * @throws ApiError RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function chargeUnknownProject(c: AppContext): Promise<void> {
  await chargeAction(c, chargeOf.tenant(c.var.principal.tenantId, { method: c.req.method, path: '' }));
}

/**
 * What changes something waits until it is admitted. What reads goes on beside the count, because both are trips
 * at the edge; it calls `admission` before anything with an effect (`inProject` does).
 */
export const holdWrites: MiddlewareHandler<AppEnv> = async (c, next) => {
  if (!isReading(c.req.method)) await admission(c);
  await next();
};

/** Puts the count on every answer, errors too, and sees that nobody gets one who is over the limit. */
export const limitRequests: MiddlewareHandler<AppEnv> = async (c, next) => {
  await next();
  // Who could not be told apart is counted by address.
  if (c.res.status === 401) count(c, chargeOf.failedAuthentication(connectingIp(c)));
  else if (!c.var.verdict) count(c, chargeOf.public(connectingIp(c)));
  const verdict = await c.var.verdict;
  if (!verdict.admitted && c.res.status !== 429) {
    // Hono keeps the headers of the answer that is replaced; this one is a 401's alone.
    c.res.headers.delete('WWW-Authenticate');
    c.res = renderFailure(c, refusal(verdict));
  }
  const { headers } = c.res;
  headers.set('X-RateLimit-Limit', String(verdict.limit));
  headers.set('X-RateLimit-Remaining', String(verdict.remaining));
  headers.set('X-RateLimit-Reset', String(verdict.resetAt));
};
