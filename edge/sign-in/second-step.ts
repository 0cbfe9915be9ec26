import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { rejection } from '../authentication/rejection.ts';
import { unseal } from '../crypto/seal.ts';
import type { SecondFactorMethod } from '../database/column-types.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { enforce, refund, SingleUse } from '../rate-limits/limiter-client.ts';
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
 * @returns or UNAUTHENTICATED when the account was deleted, its password changed or its sessions ended since
 *   then
 */
async function personOf({ settings, db, preAuth }: SecondFactorContext): Promise<Result<Person, Failure>> {
  const { user, sealed, jti, version } = preAuth;
  if (sealed) {
    const text = await unseal(settings.CREDENTIAL_KEYS, tokensSealContext(jti), sealed);
    return ok({ tokens: SealedTokens.parse(JSON.parse(text)) });
  }
  const [account] = await accountById(db, user.gid);
  return account?.version === version ? ok({ account }) : fail(rejection('session_ended'));
}

/** Work before the tokens of a second step are issued, once per pre-auth token. */
export type BeforeTokens = (person: Person) => Promise<Result<null, Failure>>;

/**
 * Issues tokens after the second step. A pre-auth token completes one sign-in.
 * @returns or UNAUTHENTICATED when the pre-auth token was used before, and the failures of `beforeTokens`
 */
export async function completeSecondStep(
  context: SecondFactorContext,
  secondFactor: SecondFactorMethod | 'recovery_code' | 'skipped',
  beforeTokens: BeforeTokens = async () => ok(null),
): Promise<Result<LoginResponse, Failure>> {
  const { jti, first_factor } = context.preAuth;
  const isFirst = await new SingleUse(context.env, 'pre_auth', jti).consume();
  if (!isFirst.ok) return isFirst;
  if (!isFirst.value) return fail(rejection('own_token_wrong'));
  const person = await personOf(context);
  if (!person.ok) return person;
  const prepared = await beforeTokens(person.value);
  if (!prepared.ok) return prepared;
  const signedIn = await signIn(context, person.value, { first_factor, second_factor: secondFactor });
  return signedIn.ok ? ok(loginResponse(signedIn.value)) : signedIn;
}

/**
 * Evaluates a code within its limits. An attempt is counted before the code is evaluated, so that concurrent
 * guesses are counted too: against the pre-auth token, and against the user, for whom an attacker may hold
 * many tokens.
 * @param evaluate returns null for a wrong code
 * @returns or CODE_WRONG, also for the right code when the token has no attempt left; RATE_LIMITED,
 *   LIMITER_UNAVAILABLE
 */
export async function withinAttempts<T>(
  context: SecondFactorContext,
  evaluate: () => Promise<T | null>,
): Promise<Result<T, Failure>> {
  const { env } = context;
  const { user, jti, first_factor } = context.preAuth;
  const ofToken = await enforce(env, bucketOf.secondFactorTry(jti));
  if (!ofToken.ok)
    return ofToken.failure.code === 'RATE_LIMITED' ? fail(wrongCode('no attempt left')) : ofToken;
  const bucket = bucketOf.wrongSecondFactor(user);
  const ofUser = await enforce(env, bucket);
  if (!ofUser.ok) return ofUser;
  const value = await evaluate();
  if (value === null) {
    const identify = async () => {
      const person = await personOf(context);
      if (!person.ok) return undefined;
      const identity = await identityOfPerson(context, person.value, context.now());
      return identity.ok ? identity.value : undefined;
    };
    recordFailedSignIn(context, identify, { first_factor, step: 'second_factor' });
    return fail(wrongCode('wrong code'));
  }
  await refund(env, bucket);
  return ok(value);
}

const wrongCode = (reason: string): Failure => ({ code: 'CODE_WRONG', reason });
