/** How long a place is held without a renewal. */
export const HOLD_MS = 45_000;

/**
 * A limited number of places, in memory. A holder renews its place, so that a lost instance knows all holders
 * again after one round of renewals, and a lost holder loses its place.
 */
export class Places {
  readonly #ends = new Map<string, number>();

  /** Gets or renews the holder's place. @returns false if all places are taken */
  hold(holder: string, max: number, now: number): boolean {
    for (const [other, endsAt] of this.#ends) if (endsAt <= now) this.#ends.delete(other);
    if (!this.#ends.has(holder) && this.#ends.size >= max) return false;
    this.#ends.set(holder, now + HOLD_MS);
    return true;
  }

  release(holder: string): void {
    this.#ends.delete(holder);
  }
}

/** The end of a loan. */
export interface ReturnedShare {
  id: string;
  /** What was not used of it. */
  count: number;
}

/** What an isolate asks for together with the count of a request. */
export interface WantedShare {
  id: string;
  count: number;
  /** Its last one. */
  returned: ReturnedShare | null;
}

/**
 * The shares of one window that isolates have borrowed. The window counts a share when it is lent, so that no
 * isolate can admit a request over the limit. In memory: what is lent when the object is lost stays counted
 * until the window ends.
 */
export class LentShares {
  readonly #shares = new Map<string, number>();

  /** Lends a share. @param remaining of the window @returns its size, which the caller counts; 0: none */
  lend({ id, count }: WantedShare, limit: number, remaining: number): number {
    const lent = [...this.#shares.values()].reduce((sum, share) => sum + share, 0);
    const free = Math.floor(limit * LENT_MAX) - lent;
    const share = Math.max(0, Math.min(count, free, Math.floor(remaining * OF_REMAINING)));
    if (share > 0) this.#shares.set(id, share);
    return share;
  }

  /**
   * Ends a loan.
   * @returns how much of it was not used; 0 for a loan that is not known, which may be of an earlier window
   */
  settle({ id, count }: ReturnedShare): number {
    const share = this.#shares.get(id) ?? 0;
    this.#shares.delete(id);
    return Math.min(share, count);
  }
}

/** A fixed window, which starts with its first request. */
export interface RateWindow {
  /** Unix milliseconds; a request at or after this time starts a new window. */
  endsAt: number;
  /** Requests admitted so far. */
  count: number;
}

export interface Counted {
  window: RateWindow;
  admitted: boolean;
  /** Requests remaining in the window. */
  remaining: number;
}

export const isOver = ({ endsAt }: RateWindow, now: number): boolean => endsAt <= now;

/**
 * Counts a request against a window. Denied requests are not counted. If the clock was set back, the count is
 * kept and the window ends at most one window length from now.
 * @param now Unix milliseconds
 * @param max may be smaller than it was when the window started
 */
export function countIn(
  window: RateWindow | undefined,
  now: number,
  { max, windowMs }: { max: number; windowMs: number },
): Counted {
  const latestEnd = now + windowMs;
  const { endsAt, count } = window && !isOver(window, now) ? window : { endsAt: latestEnd, count: 0 };
  const admitted = count < max;
  const counted = admitted ? count + 1 : count;
  return {
    window: { endsAt: Math.min(endsAt, latestEnd), count: counted },
    admitted,
    remaining: Math.max(0, max - counted),
  };
}

/**
 * What isolates hold of a limit together and have not returned. A window is used up while other isolates
 * still hold some of it, so this is how far below its limit a window can end.
 */
const LENT_MAX = 0.03;

/**
 * A loan is at most this part of what remains, so that the last requests of a window are counted one by one.
 */
const OF_REMAINING = 1 / 16;
