import type { Env } from '../settings.ts';
import type { Charge } from './buckets.ts';
import { Denials } from './denials.ts';
import { LIMITS, type LimitTable } from './limits.ts';
import type { Reading } from './rate-limiter.ts';

const REMEMBERED_DENIALS = 10_000;

export interface Verdict {
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

const denials = new Denials<Reading>(REMEMBERED_DENIALS);

/**
 * Counts a request. A refusal is remembered until the window ends, so that a client that goes on asking costs
 * no call of the object.
 */
export async function take(env: Env, { bucket, limit }: Charge): Promise<Verdict> {
  const key = JSON.stringify([limit, bucket]);
  const askedAt = Date.now();
  const denial = denials.get(key, askedAt);
  if (denial) return verdictOf(denial.value, denial.until - askedAt);
  const reading = await askObject(env, { bucket, limit });
  const { admitted, restMs } = reading;
  if (!admitted && !(LIMITS as LimitTable)[limit].givenBack)
    denials.remember(key, reading, { askedAt, restMs });
  return verdictOf(reading, restMs);
}

/** Takes back what `take` counted. A call that is lost leaves the count as it is: too strict for an hour. */
export const giveBack = ({ RATE_LIMITER }: Env, { bucket, limit }: Charge): Promise<void> =>
  RATE_LIMITER.get(RATE_LIMITER.idFromName(bucket))
    .giveBack(limit)
    .catch(() => {});

/** An object that was reset under the call (new code, another machine) is asked again; at worst it counts twice. */
async function askObject({ RATE_LIMITER }: Env, { bucket, limit }: Charge): Promise<Reading> {
  const ask = () => RATE_LIMITER.get(RATE_LIMITER.idFromName(bucket)).take(limit);
  try {
    return await ask();
  } catch (error) {
    if ((error as { overloaded?: boolean }).overloaded) throw error;
    return ask();
  }
}

const verdictOf = ({ admitted, limit, remaining, endsAt }: Reading, restMs: number): Verdict => ({
  admitted,
  limit,
  remaining,
  resetAt: Math.ceil(endsAt / 1000),
  retryAfter: Math.ceil(restMs / 1000),
});
