import { ApiError } from '../../errors.ts';

/** Longer than a hash takes, so that other requests have the rest of it. */
const TURN_MS = 500;
const LONGEST_WAIT_MS = 15_000;

/** Unix milliseconds. */
let nextTurnAt = 0;

/**
 * Waits for a turn to hash a password. workerd hashes on the only thread of an isolate: without turns a crowd that
 * comes at once holds up every other request until the last of it is done.
 * @throws ApiError RATE_LIMITED when too many wait
 */
export async function hashingTurn(): Promise<void> {
  const now = Date.now();
  const ahead = Math.max(0, nextTurnAt - now);
  // Further off than any turn that was given: the clock went back.
  const wait = ahead > LONGEST_WAIT_MS + TURN_MS ? 0 : ahead;
  if (wait > LONGEST_WAIT_MS) {
    throw new ApiError('RATE_LIMITED', { retry_after: Math.ceil(wait / 1000) }, 'too many passwords to hash');
  }
  nextTurnAt = now + wait + TURN_MS;
  await new Promise((resolve) => setTimeout(resolve, wait));
}
