import { ApiError } from '../../errors.ts';

/** Longer than a hash takes, so that other requests can use the rest of the turn. */
const TURN_MS = 500;
const MAX_WAIT_MS = 15_000;

/** Unix milliseconds. */
let nextTurnAt = 0;

/**
 * Waits for a turn to hash a password. workerd hashes on the only thread of an isolate, so without turns a burst of
 * logins would block every other request until the last hash is done.
 * @throws ApiError RATE_LIMITED when too many requests wait
 */
export async function hashingTurn(): Promise<void> {
  const now = Date.now();
  const ahead = Math.max(0, nextTurnAt - now);
  // The next turn is later than any turn that was assigned: the clock was set back.
  const wait = ahead > MAX_WAIT_MS + TURN_MS ? 0 : ahead;
  if (wait > MAX_WAIT_MS) {
    throw new ApiError(
      'RATE_LIMITED',
      { retry_after: Math.ceil(wait / 1000) },
      'too many requests wait for a password hash',
    );
  }
  nextTurnAt = now + wait + TURN_MS;
  await new Promise((resolve) => setTimeout(resolve, wait));
}
