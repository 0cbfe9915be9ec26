import { BoundedMap } from '../bounded-map.ts';
import type { ReturnedShare, WantedShare } from './lent-shares.ts';
import type { WindowState } from './rate-limiter-rpc.ts';

/** After this time a share is returned. An isolate that has asked for one does not wait longer before it asks again. */
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

interface Bucket {
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
 * What this isolate has borrowed of the windows of many buckets. No request waits for the call of another one, because the
 * runtime may cancel that: requests beyond the share are each counted by the object.
 */
export class BorrowedShares {
  readonly #buckets: BoundedMap<string, Bucket>;

  constructor(limit: number) {
    this.#buckets = new BoundedMap(limit);
  }

  /** Uses the share for one request. @returns the window after it; null: the object has to count the request */
  use(key: string, now: number): WindowState | null {
    const bucket = this.#buckets.get(key);
    if (!bucket) return null;
    bucket.requests += 1;
    const { share } = bucket;
    if (!share || share.left === 0) return null;
    const { window, calledAt } = share;
    const restMs = window.restMs - (now - calledAt);
    // Both ends, because the clock can be set back. What is not returned is counted, so it may be used until the window ends.
    if (restMs <= 0 || now < calledAt) return null;
    share.left -= 1;
    window.remaining -= 1;
    return { ...window, restMs };
  }

  /** Puts one request back into the share, as if it had not been counted. @returns false: there is no share */
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

/** Also of a share that is used up, so that the object lends its part again. */
const returnOf = ({ share }: Bucket): ReturnedShare | null => share && { id: share.id, count: share.left };
