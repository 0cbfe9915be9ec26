import { FAILURES } from '../../shared/failures.ts';
import type { AppContext } from '../app-env.ts';
import { ApiError } from '../errors.ts';
import { sha256 } from '../sha256.ts';
import { signInFailed } from '../sign-in/provider/provider-failure.ts';
import { bucketOf } from './buckets.ts';
import { refund } from './consume.ts';
import { isWithinLimit } from './limit-requests.ts';

const UNAVAILABLE = 503;

/**
 * Does what a state or a code is good for, once, whatever comes of it: who guesses at a verifier has one guess. Only
 * while the provider is away nothing was tried, and it may be tried again.
 * @throws ApiError SIGN_IN_FAILED when it was used, LIMITER_UNAVAILABLE
 */
export async function useOnce<T>(
  c: AppContext,
  what: 'state' | 'code',
  secret: string,
  work: () => Promise<T>,
): Promise<T> {
  const charge = bucketOf.use(what, await sha256(secret));
  if (!(await isWithinLimit(c, charge))) throw signInFailed(`the ${what} was used before`);
  try {
    return await work();
  } catch (error) {
    const isAway = error instanceof ApiError && FAILURES[error.failure.code].status === UNAVAILABLE;
    if (isAway) await refund(c.env, charge);
    throw error;
  }
}
