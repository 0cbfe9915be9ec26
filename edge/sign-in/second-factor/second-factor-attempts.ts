import type { AppContext } from '../../app-env.ts';
import { ApiError } from '../../errors.ts';
import { bucketOf } from '../../rate-limits/buckets.ts';
import { refund } from '../../rate-limits/consume.ts';
import { enforceLimit, isWithinLimit } from '../../rate-limits/limit-requests.ts';
import { recordFailedSignIn } from '../sessions/failed-sign-in.ts';
import { identityOfPerson } from '../sessions/person.ts';
import { halfSignedIn } from './second-step.ts';

/**
 * What a code turned out to be. It is counted before it is looked at, so that guesses sent at once are counted too:
 * by the pre-auth token, and by the user, who may be guessed at with many.
 * @param evaluate null: the code is wrong
 * @throws ApiError CODE_WRONG, for the right one too when the token has no try left; RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function judged<T>(c: AppContext, evaluate: () => Promise<T | null>): Promise<T> {
  const { user, jti, first_factor } = c.var.preAuth;
  if (!(await isWithinLimit(c, bucketOf.secondFactorTry(jti)))) throw wrong('no try left');
  const ofUser = bucketOf.wrongSecondFactor(user);
  await enforceLimit(c, ofUser);
  const found = await evaluate();
  if (found === null) {
    const identify = async () => identityOfPerson(c, await halfSignedIn(c), new Date());
    recordFailedSignIn(c, identify, { first_factor, step: 'second_factor' });
    throw wrong('wrong code');
  }
  await refund(c.env, ofUser);
  return found;
}

const wrong = (reason: string) => new ApiError('CODE_WRONG', undefined, reason);
