import { ApiError } from '../../errors.ts';

/** Longer than a hash of this cost takes, so that other requests can use the rest of the turn. */
const turnMs = (log2N: number): number => Math.ceil(500 * 2 ** (log2N - 15));
const MAX_WAIT_MS = 15_000;

/** Unix milliseconds. */
let nextTurnAt = 0;

/**
 * Waits for a turn to hash a password. workerd hashes on the only thread of an isolate, so without turns a burst of
 * logins would block every other request until the last hash is done.
 * @param log2N the cost of the hash, as `PASSWORD_COST`
 * @throws ApiError RATE_LIMITED when too many requests wait
 */
export async function hashingTurn(log2N: number): Promise<void> {
  const turn = turnMs(log2N);
  const now = Date.now();
  const ahead = Math.max(0, nextTurnAt - now);
  // The next turn is later than any turn that was assigned: the clock was set back.
  const wait = ahead > MAX_WAIT_MS + turn ? 0 : ahead;
  if (wait > MAX_WAIT_MS) {
    throw new ApiError(
      'RATE_LIMITED',
      { retry_after: Math.ceil(wait / 1000) },
      'too many requests wait for a password hash',
    );
  }
  nextTurnAt = now + wait + turn;
  await new Promise((resolve) => setTimeout(resolve, wait));
}
