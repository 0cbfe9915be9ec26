import type { MiddlewareHandler } from 'hono';
import type { Failure } from '../../shared/failures.ts';
import type { Result } from '../../shared/result.ts';
import { ApiError, unwrap } from '../errors.ts';
import { type Bucket, bucketOf, isReading } from '../rate-limits/buckets.ts';
import {
  cachedDenial,
  consume,
  type LimitDecision,
  peek,
  rateLimited,
  refund,
} from '../rate-limits/limiter-client.ts';
import type { AppContext, AppEnv } from './context.ts';

/** @throws ApiError LIMITER_UNAVAILABLE */
const orUnavailable = (decision: Promise<LimitDecision>): Promise<LimitDecision> =>
  decision.catch((error: Error) => {
    throw new ApiError('LIMITER_UNAVAILABLE', undefined, error.message);
  });

const count = (c: AppContext, bucket: Bucket): Promise<LimitDecision> =>
  orUnavailable(consume(c.env, bucket, (work) => c.executionCtx.waitUntil(work)));

/** Starts to count the request; `requireAdmission` waits for the decision. */
export function countRequest(c: AppContext, bucket: Bucket): void {
  governRequest(c, bucket, count(c, bucket));
}

/**
 * Counts the request of a machine against its own bucket and against its tenant's. A machine over its own
 * limit uses up nothing of its tenant's.
 */
export function countMachineRequest(c: AppContext, own: Bucket, ofTenant: Bucket): void {
  governRequest(c, own, countBoth(c, own, ofTenant));
}

async function countBoth(c: AppContext, own: Bucket, ofTenant: Bucket): Promise<LimitDecision> {
  const denial = cachedDenial(own);
  if (denial) return denial;
  const [byOwn, byTenant] = await Promise.all([count(c, own), count(c, ofTenant)]);
  if (!byOwn.admitted && byTenant.admitted) c.executionCtx.waitUntil(refund(c.env, ofTenant));
  return byOwn.admitted && !byTenant.admitted ? byTenant : byOwn;
}

function governRequest(c: AppContext, bucket: Bucket, decision: Promise<LimitDecision>): void {
  // Code that awaits the decision sees a failure; if none does, it must not be an unhandled rejection.
  decision.catch(() => {});
  c.set('limitDecision', decision);
  c.set('limitBucket', bucket);
}

/** @throws ApiError RATE_LIMITED, LIMITER_UNAVAILABLE */
export async function requireAdmission(c: AppContext): Promise<void> {
  const decision = await c.var.limitDecision;
  if (!decision.admitted) throw ApiError.of(rateLimited(decision));
}

/**
 * Limits guesses of a secret. Once the failures of this bucket are used up, a right secret gets the same 429
 * as a wrong one. The count is read concurrently with the request, to save a round trip, and a known denial
 * before the check.
 * @param check of the secret
 * @param bucket of the request if the secret is right
 * @throws ApiError the failure of the check, RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function guardSecret(
  c: AppContext,
  failures: Bucket,
  check: () => Promise<Result<null, Failure>>,
  bucket: Bucket,
): Promise<void> {
  c.set('failures', failures);
  const denial = cachedDenial(failures);
  if (denial) {
    governRequest(c, failures, Promise.resolve(denial));
    return requireAdmission(c);
  }
  unwrap(await check());
  const guesses = orUnavailable(peek(c.env, failures));
  const counted = count(c, bucket);
  governRequest(
    c,
    bucket,
    Promise.all([guesses, counted]).then(([guess, own]) => (guess.admitted ? own : guess)),
  );
}

/**
 * Refuses a client that has used up its wrong guesses, also with the right secret.
 * @throws ApiError RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function refuseKnownGuesser(c: AppContext, failures: Bucket): Promise<void> {
  const denial = cachedDenial(failures) ?? (await orUnavailable(peek(c.env, failures)));
  if (denial.admitted) return;
  governRequest(c, failures, Promise.resolve(denial));
  await requireAdmission(c);
}

/**
 * Counts the request against this bucket, which the rate limit headers then report, and waits for the
 * decision.
 * @throws ApiError RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function enforceRequestLimit(c: AppContext, bucket: Bucket): Promise<void> {
  countRequest(c, bucket);
  await requireAdmission(c);
}

/**
 * Counts a request with an unknown project id against the tenant, because invented ids would each have their
 * own count.
 * @throws ApiError RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function countUnknownProject(c: AppContext): Promise<void> {
  await enforceRequestLimit(c, bucketOf.tenant(c.var.principal.tenantId, { method: c.req.method, path: '' }));
}

/**
 * Writes wait for admission. Reads run concurrently with the count, to save a round trip; they call
 * `requireAdmission` before anything with an effect (`inProject` does).
 */
export const enforceBeforeWrites: MiddlewareHandler<AppEnv> = async (c, next) => {
  if (!isReading(c.req.method)) await requireAdmission(c);
  await next();
};
