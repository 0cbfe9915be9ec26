import type { Env } from '../env.ts';
import type { Bucket } from './buckets.ts';
import { Denials } from './denials.ts';
import { LIMITS, type LimitTable } from './limits.ts';
import type { WindowState } from './rate-limiter-rpc.ts';
import { countRefusal } from './refusals.ts';

const CACHED_DENIALS = 10_000;

export interface LimitDecision {
  admitted: boolean;
  /** Requests allowed per window. */
  limit: number;
  /** Requests remaining in the window at the time of counting. */
  remaining: number;
  /** End of the window by the clock of its object: Unix seconds, rounded up. */
  resetAt: number;
  /** Whole seconds until the end of the window, at least 1. Not affected by the clock of this isolate. */
  retryAfter: number;
}

const denials = new Denials<WindowState>(CACHED_DENIALS);

/** Counts a request. A denial is cached until the window ends, so that repeated requests cost no further call. */
export const consume = (env: Env, bucket: Bucket): Promise<LimitDecision> => decide(env, bucket, 'consume');

/** Whether a request would be admitted, without counting one. Denials are cached as those of `consume`. */
export const peek = (env: Env, bucket: Bucket): Promise<LimitDecision> => decide(env, bucket, 'peek');

/** The cached denial of this bucket, without a call; null if there is none. */
export function cachedDenial({ bucket, limit }: Bucket): LimitDecision | null {
  const now = Date.now();
  const denial = denials.get(JSON.stringify([limit, bucket]), now);
  if (denial) countRefusal(limit);
  return denial ? decisionOf(denial.value, denial.until - now) : null;
}

async function decide(
  env: Env,
  { bucket, limit }: Bucket,
  method: 'consume' | 'peek',
): Promise<LimitDecision> {
  const denial = cachedDenial({ bucket, limit });
  if (denial) return denial;
  const key = JSON.stringify([limit, bucket]);
  const calledAt = Date.now();
  const window = await callLimiter(env, { bucket, limit }, method);
  const { admitted, restMs } = window;
  if (!admitted) countRefusal(limit);
  if (!admitted && !(LIMITS as LimitTable)[limit].refundable)
    denials.remember(key, window, { calledAt, restMs });
  return decisionOf(window, restMs);
}

/** Undoes one `consume`. If the call fails, the count stays one too high until the window ends. */
export const refund = ({ RATE_LIMITER }: Env, { bucket, limit }: Bucket): Promise<void> =>
  RATE_LIMITER.get(RATE_LIMITER.idFromName(bucket))
    .refund(limit)
    .catch(() => {});

/** Retries once if the object was reset during the call (a deployment, a move); the request may be counted twice. */
async function callLimiter(
  { RATE_LIMITER }: Env,
  { bucket, limit }: Bucket,
  method: 'consume' | 'peek',
): Promise<WindowState> {
  const call = () => RATE_LIMITER.get(RATE_LIMITER.idFromName(bucket))[method](limit);
  try {
    return await call();
  } catch (error) {
    if ((error as { overloaded?: boolean }).overloaded) throw error;
    return call();
  }
}

const decisionOf = ({ admitted, limit, remaining, endsAt }: WindowState, restMs: number): LimitDecision => ({
  admitted,
  limit,
  remaining,
  resetAt: Math.ceil(endsAt / 1000),
  retryAfter: Math.ceil(restMs / 1000),
});
