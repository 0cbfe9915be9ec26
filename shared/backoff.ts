interface Backoff {
  /** Milliseconds before the first retry. */
  first: number;
  /** Milliseconds that no wait exceeds. */
  longest: number;
  /** From 0 to 1: shortens the wait by up to a half, so that many clients do not retry in step. */
  random?: number;
}

/**
 * Exponential backoff: doubles with each attempt.
 * @param attempt failed attempts so far, not counting the one that was just made; 0 waits `first`
 * @returns milliseconds to wait before the next attempt
 */
export const backoff = (attempt: number, { first, longest, random = 1 }: Backoff): number =>
  Math.min(longest, first * 2 ** attempt) * (0.5 + random / 2);
