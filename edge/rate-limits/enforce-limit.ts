import type { Env } from '../env.ts';
import { ApiError } from '../errors.ts';
import type { Bucket } from './buckets.ts';
import { consume, consumeBorrowed, type LimitDecision, peek, type WaitUntil } from './consume.ts';

const orFail = (decision: Promise<LimitDecision>): Promise<LimitDecision> =>
  decision.catch((error: Error) => {
    throw new ApiError('LIMITER_UNAVAILABLE', undefined, error.message);
  });

/** @throws ApiError LIMITER_UNAVAILABLE */
const consumeOrFail = (env: Env, bucket: Bucket) => orFail(consume(env, bucket));

/** @throws ApiError LIMITER_UNAVAILABLE */
export const consumeBorrowedOrFail = (env: Env, bucket: Bucket, waitUntil: WaitUntil) =>
  orFail(consumeBorrowed(env, bucket, waitUntil));

/** @throws ApiError LIMITER_UNAVAILABLE */
export const peekOrFail = (env: Env, bucket: Bucket) => orFail(peek(env, bucket));

export const rateLimited = ({ retryAfter }: LimitDecision) => ({
  code: 'RATE_LIMITED' as const,
  fields: { retry_after: retryAfter },
});

/** @throws ApiError RATE_LIMITED */
export function admit(decision: LimitDecision): void {
  if (!decision.admitted) throw ApiError.of(rateLimited(decision));
}

/**
 * Consumes from a limit other than the request's own, which alone is reported in the response headers.
 * @throws ApiError LIMITER_UNAVAILABLE
 */
export const isWithinLimit = async (env: Env, bucket: Bucket): Promise<boolean> =>
  (await consumeOrFail(env, bucket)).admitted;

/** As `isWithinLimit`. @throws ApiError RATE_LIMITED, LIMITER_UNAVAILABLE */
export const enforceLimit = async (env: Env, bucket: Bucket): Promise<void> =>
  admit(await consumeOrFail(env, bucket));
