import { FAILURES } from '../../../shared/failures.ts';
import { ApiError } from '../../errors.ts';
import { SingleUse } from '../../rate-limits/single-use.ts';
import type { SignInContext } from '../sign-in-context.ts';
import { signInFailed } from './provider-failure.ts';

const UNAVAILABLE = 503;

/**
 * Runs a sign-in with a state or an authorization code that is valid once, whether the sign-in succeeds or fails: an
 * attacker can guess one PKCE verifier for it. It stays valid only if the sign-in failed because the provider or its
 * keys are unavailable.
 * @throws ApiError SIGN_IN_FAILED when it was used before, LIMITER_UNAVAILABLE
 */
export async function attemptOnce<T>(
  { env }: SignInContext,
  kind: 'state' | 'code',
  value: string,
  attempt: () => Promise<T>,
): Promise<T> {
  const singleUse = new SingleUse(env, kind, value);
  if (!(await singleUse.consume())) throw signInFailed(`the ${kind} was used before`);
  try {
    return await attempt();
  } catch (error) {
    const isUnavailable = error instanceof ApiError && FAILURES[error.failure.code].status === UNAVAILABLE;
    if (isUnavailable) await singleUse.refund();
    throw error;
  }
}
