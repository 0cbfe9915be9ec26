import type { Env } from '../env.ts';
import type { Bucket } from './buckets.ts';
import { Denials } from './denials.ts';
import { LIMITS, type LimitTable } from './limits.ts';
import type { WindowState } from './rate-limiter.ts';

const REMEMBERED_DENIALS = 10_000;

export interface LimitDecision {
  admitted: boolean;
  /** How many requests one window lets through. */
  limit: number;
  /** How many more this window lets through: exact at the moment of counting. */
  remaining: number;
  /** When the window ends by the clock of its object: Unix seconds, rounded up. */
  resetAt: number;
  /** Whole seconds until then, at least 1; by no clock but the object's, so right also where clocks differ. */
  retryAfter: number;
}

const denials = new Denials<WindowState>(REMEMBERED_DENIALS);

/**
 * Counts a request. A refusal is remembered until the window ends, so that a client that goes on asking costs
 * no call of the object.
 */
export async function consume(env: Env, { bucket, limit }: Bucket): Promise<LimitDecision> {
  const key = JSON.stringify([limit, bucket]);
  const askedAt = Date.now();
  const denial = denials.get(key, askedAt);
  if (denial) return verdictOf(denial.value, denial.until - askedAt);
  const reading = await askObject(env, { bucket, limit });
  const { admitted, restMs } = reading;
  if (!admitted && !(LIMITS as LimitTable)[limit].refundable)
    denials.remember(key, reading, { askedAt, restMs });
  return verdictOf(reading, restMs);
}

/** Takes back what `take` counted. A call that is lost leaves the count as it is: too strict for an hour. */
export const refund = ({ RATE_LIMITER }: Env, { bucket, limit }: Bucket): Promise<void> =>
  RATE_LIMITER.get(RATE_LIMITER.idFromName(bucket))
    .refund(limit)
    .catch(() => {});

/** An object that was reset under the call (new code, another machine) is asked again; at worst it counts twice. */
async function askObject({ RATE_LIMITER }: Env, { bucket, limit }: Bucket): Promise<WindowState> {
  const ask = () => RATE_LIMITER.get(RATE_LIMITER.idFromName(bucket)).consume(limit);
  try {
    return await ask();
  } catch (error) {
    if ((error as { overloaded?: boolean }).overloaded) throw error;
    return ask();
  }
}

const verdictOf = ({ admitted, limit, remaining, endsAt }: WindowState, restMs: number): LimitDecision => ({
  admitted,
  limit,
  remaining,
  resetAt: Math.ceil(endsAt / 1000),
  retryAfter: Math.ceil(restMs / 1000),
});
