import { ApiError } from '../../errors.ts';
import { bucketOf } from '../../rate-limits/buckets.ts';
import { refund } from '../../rate-limits/consume.ts';
import { enforceLimit, isWithinLimit } from '../../rate-limits/enforce-limit.ts';
import { recordFailedSignIn } from '../sessions/failed-sign-in.ts';
import { identityOfPerson } from '../sessions/person.ts';
import type { SecondFactorContext } from './second-factor.ts';
import { personOf } from './second-step.ts';

/**
 * Evaluates a code within its limits. An attempt is counted before the code is evaluated, so that concurrent guesses
 * are counted too: against the pre-auth token, and against the user, for whom an attacker may hold many tokens.
 * @param evaluate returns null for a wrong code
 * @throws ApiError CODE_WRONG, also for the right code when the token has no attempt left; RATE_LIMITED,
 *   LIMITER_UNAVAILABLE
 */
export async function withinAttempts<T>(
  context: SecondFactorContext,
  evaluate: () => Promise<T | null>,
): Promise<T> {
  const { env } = context;
  const { user, jti, first_factor } = context.preAuth;
  if (!(await isWithinLimit(env, bucketOf.secondFactorTry(jti)))) throw wrongCode('no attempt left');
  const bucket = bucketOf.wrongSecondFactor(user);
  await enforceLimit(env, bucket);
  const value = await evaluate();
  if (value === null) {
    const identify = async () => identityOfPerson(context, await personOf(context), context.now());
    recordFailedSignIn(context, identify, { first_factor, step: 'second_factor' });
    throw wrongCode('wrong code');
  }
  await refund(env, bucket);
  return value;
}

const wrongCode = (reason: string) => new ApiError('CODE_WRONG', undefined, reason);
