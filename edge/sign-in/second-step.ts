import { z } from 'zod';
import { rejected } from '../authentication/rejection.ts';
import { unseal } from '../crypto/seal.ts';
import type { SecondFactorMethod } from '../database/column-types.ts';
import { ApiError } from '../errors.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { enforceLimit, isWithinLimit, refund, SingleUse } from '../rate-limits/limiter-client.ts';
import { accountById } from './accounts.ts';
import {
  type LoginResponse,
  loginResponse,
  recordFailedSignIn,
  signIn,
  tokensSealContext,
} from './first-factor.ts';
import { identityOfPerson, type Person } from './person.ts';
import type { SecondFactorContext } from './second-factor.ts';

const SealedTokens = z.object({
  accessToken: z.string(),
  refreshToken: z.string().nullable(),
  accessExpiresAt: z.coerce.date(),
});

/**
 * The person who has passed the first factor.
 * @throws ApiError UNAUTHENTICATED when the account was deleted, its password changed or its sessions ended since then
 */
async function personOf({ settings, db, preAuth }: SecondFactorContext): Promise<Person> {
  const { user, sealed, jti, version } = preAuth;
  if (sealed) {
    const text = await unseal(settings.CREDENTIAL_KEYS, tokensSealContext(jti), sealed);
    return { tokens: SealedTokens.parse(JSON.parse(text)) };
  }
  const [account] = await accountById(db, user.gid);
  if (!account || account.version !== version) throw rejected('session_ended');
  return { account };
}

/**
 * Issues tokens after the second step. A pre-auth token completes one sign-in.
 * @param beforeTokens runs before the tokens are issued, once per pre-auth token
 * @throws ApiError UNAUTHENTICATED when the pre-auth token was used before
 */
export async function completeSecondStep(
  context: SecondFactorContext,
  secondFactor: SecondFactorMethod | 'recovery_code' | 'skipped',
  beforeTokens: (person: Person) => Promise<void> = async () => {},
): Promise<LoginResponse> {
  const { jti, first_factor } = context.preAuth;
  const singleUse = new SingleUse(context.env, 'pre_auth', jti);
  if (!(await singleUse.consume())) throw rejected('own_token_wrong');
  const person = await personOf(context);
  await beforeTokens(person);
  return loginResponse(await signIn(context, person, { first_factor, second_factor: secondFactor }));
}

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
