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
 * Counts a request against a window. Denied requests are not counted. If the clock was set back, the count is kept
 * and the window ends at most one window length from now.
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
