import type { Env } from '../env.ts';
import { repeatIfLost } from '../lost-object.ts';
import { BorrowedShares, SHARE_MS } from './borrowed-shares.ts';
import type { Bucket } from './buckets.ts';
import { Denials } from './denials.ts';
import type { WantedShare } from './lent-shares.ts';
import { LIMITS, type LimitTable } from './limits.ts';
import type { WindowState } from './rate-limiter-rpc.ts';
import { countRefusal } from './refusals.ts';

const CACHED_DENIALS = 10_000;
const BORROWING_BUCKETS = 10_000;

/** Keeps the isolate at work after the response of a request. */
export type WaitUntil = (work: Promise<unknown>) => void;

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
const borrowed = new BorrowedShares(BORROWING_BUCKETS);

const keyOf = ({ bucket, limit }: Bucket) => JSON.stringify([limit, bucket]);

/** Counts a request. A denial is cached until the window ends, so that repeated requests cost no further call. */
export const consume = (env: Env, bucket: Bucket): Promise<LimitDecision> =>
  decide(env, bucket, (limiter) => limiter.consume(bucket.limit));

/** Whether a request would be admitted, without counting one. Denials are cached as those of `consume`. */
export const peek = (env: Env, bucket: Bucket): Promise<LimitDecision> =>
  decide(env, bucket, (limiter) => limiter.peek(bucket.limit));

/**
 * As `consume`, from a share of the window that this isolate has borrowed, if the limit is lent and something is left
 * (docs/decisions/0053).
 */
export async function consumeBorrowed(
  env: Env,
  bucket: Bucket,
  waitUntil: WaitUntil,
): Promise<LimitDecision> {
  const isLent = (LIMITS as LimitTable)[bucket.limit].lent;
  if (!isLent) return consume(env, bucket);
  const key = keyOf(bucket);
  const calledAt = Date.now();
  const known = takeFromShare(key, calledAt) ?? cachedDenial(bucket);
  if (known) return known;
  const wanted = borrowed.wanted(key, calledAt);
  const decision = await decide(env, bucket, async (limiter) => {
    const window = await limiter.consume(bucket.limit, wanted);
    if (wanted) borrowed.borrow(key, wanted, window, calledAt);
    if (wanted && window.lent) waitUntil(returnUnused(env, bucket, wanted));
    return window;
  });
  // Another request may have borrowed meanwhile.
  return decision.admitted ? decision : (takeFromShare(key, Date.now()) ?? decision);
}

function takeFromShare(key: string, now: number): LimitDecision | null {
  const window = borrowed.use(key, now);
  return window && decisionOf(window, window.restMs);
}

/** Ends a share after its time. If the call fails, what is left of it stays counted until the window ends. */
async function returnUnused(env: Env, bucket: Bucket, { id }: WantedShare): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, SHARE_MS));
  const share = borrowed.takeBack(keyOf(bucket), id);
  if (share)
    await limiterOf(env, bucket)
      .giveBack(bucket.limit, share)
      .catch(() => {});
}

/** The cached denial of this bucket, without a call; null if there is none. */
export function cachedDenial({ bucket, limit }: Bucket): LimitDecision | null {
  const now = Date.now();
  const denial = denials.get(keyOf({ bucket, limit }), now);
  if (denial) countRefusal(limit);
  return denial ? decisionOf(denial.value, denial.until - now) : null;
}

async function decide(
  env: Env,
  bucket: Bucket,
  call: (limiter: Limiter) => Promise<WindowState>,
): Promise<LimitDecision> {
  const denial = cachedDenial(bucket);
  if (denial) return denial;
  const calledAt = Date.now();
  // The request may be counted twice.
  const window = await repeatIfLost(() => call(limiterOf(env, bucket)));
  const { admitted, restMs } = window;
  if (!admitted) countRefusal(bucket.limit);
  if (!admitted && !(LIMITS as LimitTable)[bucket.limit].refundable)
    denials.remember(keyOf(bucket), window, { calledAt, restMs });
  return decisionOf(window, restMs);
}

/** Undoes one `consume`. If the call fails, the count stays one too high until the window ends. */
export const refund = async (env: Env, bucket: Bucket): Promise<void> => {
  if (!borrowed.putBack(keyOf(bucket)))
    await limiterOf(env, bucket)
      .refund(bucket.limit)
      .catch(() => {});
};

const limiterOf = ({ RATE_LIMITER }: Env, { bucket }: Bucket) =>
  RATE_LIMITER.get(RATE_LIMITER.idFromName(bucket));
type Limiter = ReturnType<typeof limiterOf>;

const decisionOf = ({ admitted, limit, remaining, endsAt }: WindowState, restMs: number): LimitDecision => ({
  admitted,
  limit,
  remaining,
  resetAt: Math.ceil(endsAt / 1000),
  retryAfter: Math.ceil(restMs / 1000),
});
