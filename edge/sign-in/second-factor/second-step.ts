import { z } from 'zod';
import { type AppContext, databaseOf } from '../../app-env.ts';
import { rejected } from '../../authentication/rejection.ts';
import { unseal } from '../../credentials/seal.ts';
import { bucketOf } from '../../rate-limits/buckets.ts';
import { isWithinLimit } from '../../rate-limits/limit-requests.ts';
import { readSettings } from '../../settings.ts';
import { accountById } from '../accounts/accounts.ts';
import { loginResponse, signIn } from '../sessions/complete-sign-in.ts';
import { sealedTokensPlace } from '../sessions/first-factor.ts';
import type { LoginResponse } from '../sessions/login-response.ts';
import type { Person } from '../sessions/person.ts';
import type { SecondFactorMethod } from './second-factor-method.ts';

const SealedTokens = z.object({
  accessToken: z.string(),
  refreshToken: z.string().nullable(),
  accessExpiresAt: z.coerce.date(),
});

/** Whoever has passed the first step. @throws ApiError UNAUTHENTICATED when the account is gone */
export async function halfSignedIn(c: AppContext): Promise<Person> {
  const { user, sealed, jti } = c.var.preAuth;
  if (sealed) {
    const text = await unseal(readSettings(c.env).CREDENTIAL_KEYS, sealedTokensPlace(jti), sealed);
    return { tokens: SealedTokens.parse(JSON.parse(text)) };
  }
  const [account] = await accountById(databaseOf(c), user.gid);
  if (!account) throw rejected('own_token_wrong');
  return { account };
}

/**
 * Full tokens for whoever has passed the second step. A pre-auth token ends one sign-in.
 * @param beforehand what happens before there are tokens, once with this pre-auth token
 * @throws ApiError UNAUTHENTICATED when it has done so already
 */
export async function afterSecondStep(
  c: AppContext,
  secondFactor: SecondFactorMethod | 'skipped',
  beforehand: (person: Person) => Promise<void> = async () => {},
): Promise<LoginResponse> {
  const { jti, first_factor } = c.var.preAuth;
  if (!(await isWithinLimit(c, bucketOf.use('pre_auth', jti)))) throw rejected('own_token_wrong');
  const person = await halfSignedIn(c);
  await beforehand(person);
  return loginResponse(await signIn(c, person, { first_factor, second_factor: secondFactor }));
}
