import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { BoundedMap } from '../bounded-map.ts';
import { sha256 } from '../crypto/encoding.ts';
import { repeatIfLost } from '../lost-object.ts';
import { type Bucket, bucketOf } from './buckets.ts';
import type { ReturnedShare, WantedShare } from './counters.ts';
import { LIMITS, type LimitName, type LimitTable, type Refusals } from './limits.ts';

/** The counters, by bucket. */
export interface Limiters {
  RATE_LIMITER: DurableObjectNamespace<RateLimiterRpc>;
}

/**
 * After this time a share is returned. An isolate that has asked for one does not wait longer before it asks
 * again.
 */
export const SHARE_MS = 2_000;
/** A share is this multiple of the requests since the last call, so that it grows with the client's rate. */
const GROWTH = 2;

interface Share {
  id: string;
  left: number;
  /** The window as the object saw it when it lent the share. */
  window: WindowState;
  calledAt: number;
}

interface BorrowingBucket {
  share: Share | null;
  /** When a share was last asked for, by the clock of this isolate. */
  askedAt: number;
  isAsking: boolean;
  /** Requests since then. */
  requests: number;
}

const isWithin = (from: number, milliseconds: number, now: number) =>
  from <= now && now < from + milliseconds;

/**
 * What this isolate has borrowed of the windows of many buckets. No request waits for the call of another
 * one, because the runtime may cancel that: requests beyond the share are each counted by the object.
 */
export class BorrowedShares {
  readonly #buckets: BoundedMap<string, BorrowingBucket>;

  constructor(limit: number) {
    this.#buckets = new BoundedMap(limit);
  }

  /**
   * Uses the share for one request.
   * @returns the window after it; null: the object has to count the request
   */
  use(key: string, now: number): WindowState | null {
    const bucket = this.#buckets.get(key);
    if (!bucket) return null;
    bucket.requests += 1;
    const { share } = bucket;
    if (!share || share.left === 0) return null;
    const { window, calledAt } = share;
    const restMs = window.restMs - (now - calledAt);
    // Both ends, because the clock can be set back. What is not returned is counted, so it may be used until
    // the window ends.
    if (restMs <= 0 || now < calledAt) return null;
    share.left -= 1;
    window.remaining -= 1;
    return { ...window, restMs };
  }

  /**
   * Puts one request back into the share, as if it had not been counted.
   * @returns false: there is no share
   */
  putBack(key: string): boolean {
    const share = this.#buckets.get(key)?.share;
    if (!share) return false;
    share.left += 1;
    share.window.remaining += 1;
    return true;
  }

  /** What to ask for with a request that the share was not enough for; null while another request asks. */
  wanted(key: string, now: number): WantedShare | null {
    const bucket = this.#buckets.get(key);
    if (bucket?.isAsking && isWithin(bucket.askedAt, SHARE_MS, now)) return null;
    const isBusy = bucket !== undefined && isWithin(bucket.askedAt, SHARE_MS, now);
    const count = isBusy ? bucket.requests * GROWTH : 0;
    this.#buckets.set(key, { share: null, askedAt: now, isAsking: true, requests: 0 });
    return { id: crypto.randomUUID(), count, returned: bucket ? returnOf(bucket) : null };
  }

  /** Stores what the object has lent. */
  borrow(key: string, { id }: WantedShare, window: WindowState, calledAt: number): void {
    const bucket = this.#buckets.get(key) ?? { share: null, askedAt: calledAt, isAsking: false, requests: 0 };
    bucket.isAsking = false;
    bucket.share = window.lent ? { id, left: window.lent, window: { ...window }, calledAt } : null;
    this.#buckets.set(key, bucket);
  }

  /** Ends a share, of which the object then has to know; null: it has ended. */
  takeBack(key: string, id: string): ReturnedShare | null {
    const bucket = this.#buckets.get(key);
    if (bucket?.share?.id !== id) return null;
    const returned = returnOf(bucket);
    bucket.share = null;
    return returned;
  }
}

/** A share that is used up is returned too, so that the object lends its part again. */
const returnOf = ({ share }: BorrowingBucket): ReturnedShare | null =>
  share && { id: share.id, count: share.left };

interface Denial<T> {
  value: T;
  /** By the clock of this isolate: Unix milliseconds. */
  until: number;
}

/**
 * A cache of denials, each until the end of its window. The clocks of the isolate and of the object are never
 * compared: the isolate's clock only measures how much of the remaining time has passed.
 */
export class Denials<T> {
  readonly #limit: number;
  #denials: BoundedMap<string, Denial<T>>;
  #latest = 0;

  constructor(limit: number) {
    this.#limit = limit;
    this.#denials = new BoundedMap(limit);
  }

  /** @param now Unix milliseconds; if the clock was set back, all denials are discarded */
  get(key: string, now: number): Denial<T> | undefined {
    if (now < this.#latest) this.#denials = new BoundedMap(this.#limit);
    this.#latest = now;
    const denial = this.#denials.get(key);
    return denial && now < denial.until ? denial : undefined;
  }

  /**
   * @param calledAt when the call was sent; the time of its response would extend the window by the round
   *   trip
   */
  remember(key: string, value: T, { calledAt, restMs }: { calledAt: number; restMs: number }): void {
    this.#denials.set(key, { value, until: calledAt + restMs });
  }
}

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

/**
 * Counts a request. A denial is cached until the window ends, so that repeated requests cost no further call.
 * @param waitUntil given: the request may be taken from a share of the window that this isolate has borrowed,
 *   if the limit is lent and something is left
 * @throws the error of the counter's object, if it cannot be reached
 */
export async function consume(env: Limiters, bucket: Bucket, waitUntil?: WaitUntil): Promise<LimitDecision> {
  const isLent = (LIMITS as LimitTable)[bucket.limit].lent;
  if (!isLent || !waitUntil) return decide(env, bucket, (limiter) => limiter.consume(bucket.limit));
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

/** Whether a request would be admitted, without counting one. Denials are cached as those of `consume`. */
export const peek = (env: Limiters, bucket: Bucket): Promise<LimitDecision> =>
  decide(env, bucket, (limiter) => limiter.peek(bucket.limit));

/**
 * Counts against a limit other than the request's own, which alone is reported in the response headers.
 * @returns or RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export const enforce = (env: Limiters, bucket: Bucket): Promise<Result<null, Failure>> =>
  consume(env, bucket).then(
    (decision) => (decision.admitted ? ok(null) : fail(rateLimited(decision))),
    (error: Error) => fail({ code: 'LIMITER_UNAVAILABLE', reason: error.message }),
  );

function takeFromShare(key: string, now: number): LimitDecision | null {
  const window = borrowed.use(key, now);
  return window && decisionOf(window, window.restMs);
}

/** Ends a share after its time. If the call fails, what is left of it stays counted until the window ends. */
async function returnUnused(env: Limiters, bucket: Bucket, { id }: WantedShare): Promise<void> {
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
  env: Limiters,
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
export const refund = async (env: Limiters, bucket: Bucket): Promise<void> => {
  if (!borrowed.putBack(keyOf(bucket)))
    await limiterOf(env, bucket)
      .refund(bucket.limit)
      .catch(() => {});
};

const limiterOf = ({ RATE_LIMITER }: Limiters, { bucket }: Bucket) =>
  RATE_LIMITER.get(RATE_LIMITER.idFromName(bucket));
type Limiter = ReturnType<typeof limiterOf>;

const decisionOf = ({ admitted, limit, remaining, endsAt }: WindowState, restMs: number): LimitDecision => ({
  admitted,
  limit,
  remaining,
  resetAt: Math.ceil(endsAt / 1000),
  retryAfter: Math.ceil(restMs / 1000),
});

export const rateLimited = ({ retryAfter }: LimitDecision): Failure => ({
  code: 'RATE_LIMITED',
  fields: { retry_after: retryAfter },
});

type OneTimeKind = Parameters<typeof bucketOf.use>[0];

/**
 * Ensures that a value is used once within two hours. The value is counted under its hash, because it may be a
 * secret.
 */
export class SingleUse {
  readonly #env: Limiters;
  readonly #kind: OneTimeKind;
  readonly #value: string;

  constructor(env: Limiters, kind: OneTimeKind, value: string) {
    this.#env = env;
    this.#kind = kind;
    this.#value = value;
  }

  /** @returns whether this is the first use, or LIMITER_UNAVAILABLE */
  async consume(): Promise<Result<boolean, Failure>> {
    const counted = await enforce(this.#env, await this.#bucket());
    if (counted.ok || counted.failure.code === 'RATE_LIMITED') return ok(counted.ok);
    return counted;
  }

  /** Makes the value usable again. */
  async refund(): Promise<void> {
    await refund(this.#env, await this.#bucket());
  }

  async #bucket() {
    return bucketOf.use(this.#kind, await sha256(this.#value));
  }
}

/**
 * Time between two calls that add what this isolate has refused; a flood of refusals must not be one of
 * calls.
 */
const SEND_EVERY_MS = 5_000;

/** Name of the `RateLimiter` object that holds the totals. */
const TOTALS = JSON.stringify(['refusals']);

/** What this isolate has refused since the last call. */
let unsent: Refusals = {};

let sentAt = Number.NEGATIVE_INFINITY;

const totals = ({ RATE_LIMITER }: Limiters) => RATE_LIMITER.get(RATE_LIMITER.idFromName(TOTALS));

function countRefusal(limit: LimitName): void {
  unsent[limit] = (unsent[limit] ?? 0) + 1;
}

/**
 * Adds this isolate's refusals to the totals, if it is time to. Never throws: a metric is not worth a
 * failure.
 */
export async function sendRefusals(env: Limiters): Promise<void> {
  const now = Date.now();
  if (Object.keys(unsent).length === 0 || (now >= sentAt && now - sentAt < SEND_EVERY_MS)) return;
  const refusals = unsent;
  unsent = {};
  sentAt = now;
  await totals(env)
    .addRefusals(refusals)
    .catch(() => {});
}

/** Refusals of all isolates since the first deployment; those of the last seconds can be missing. */
export const readRefusals = (env: Limiters): Promise<Refusals> => repeatIfLost(() => totals(env).refusals());

/** The Durable Object that counts the requests of one bucket. */
export interface RateLimiterRpc extends Rpc.DurableObjectBranded {
  /** @param wanted a share that the caller asks for, which is lent only if the request is admitted */
  consume(name: LimitName, wanted?: WantedShare | null): Promise<WindowState>;
  /** Ends a loan. */
  giveBack(name: LimitName, share: ReturnedShare): Promise<void>;
  /** Whether a request would be admitted, without counting one. */
  peek(name: LimitName): Promise<WindowState>;
  refund(name: LimitName): Promise<void>;
  /** Gets or renews a place for `HOLD_MS`. @returns false if all `max` places are taken */
  hold(holder: string, max: number): Promise<boolean>;
  release(holder: string): Promise<void>;
  /** Adds to the totals of all buckets, which one object holds. */
  addRefusals(refusals: Refusals): Promise<void>;
  refusals(): Promise<Refusals>;
}

/** The window of one limit after a request was counted. */
export interface WindowState {
  admitted: boolean;
  /** Number of requests that one window admits. */
  limit: number;
  /** Number of requests that this window still admits, including those lent with this count. */
  remaining: number;
  /** End of the window by the object's clock: Unix milliseconds. */
  endsAt: number;
  /** Milliseconds until the window ends. */
  restMs: number;
  /** How many further requests the caller may admit itself. Missing: the object runs an earlier release. */
  lent?: number;
}
