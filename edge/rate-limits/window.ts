/** A fixed window that its first request opened. */
export interface RateWindow {
  /** Unix milliseconds; from then on the next request opens a new window. */
  endsAt: number;
  /** Requests let through so far. */
  count: number;
}

export interface Counted {
  window: RateWindow;
  admitted: boolean;
  /** How many more the window lets through. */
  remaining: number;
}

export const isOver = ({ endsAt }: RateWindow, now: number): boolean => endsAt <= now;

/**
 * Counts a request against a window. Refused ones are not counted: a client that goes on asking changes nothing.
 * A clock that went back forgets no count and opens no window early, and whatever it showed before, a window ends
 * at most one length from now.
 * @param now Unix milliseconds
 * @param max may be smaller than it was when the window opened
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
