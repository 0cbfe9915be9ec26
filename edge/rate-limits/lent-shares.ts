/**
 * What isolates hold of a limit together and have not returned. A window is used up while other isolates still hold some of
 * it, so this is how far below its limit a window can end.
 */
const LENT_MAX = 0.03;
/** A loan is at most this part of what remains, so that the last requests of a window are counted one by one. */
const OF_REMAINING = 1 / 16;

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
 * The shares of one window that isolates have borrowed. The window counts a share when it is lent, so that no isolate can
 * admit a request over the limit. In memory: what is lent when the object is lost stays counted until the window ends.
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

  /** Ends a loan. @returns how much of it was not used; 0 for a loan that is not known, which may be of an earlier window */
  settle({ id, count }: ReturnedShare): number {
    const share = this.#shares.get(id) ?? 0;
    this.#shares.delete(id);
    return Math.min(share, count);
  }
}
