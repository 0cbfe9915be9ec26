import { z } from 'zod';
import { rejected } from '../authentication/rejection.ts';
import { unseal } from '../crypto/seal.ts';
import type { SecondFactorMethod } from '../database/column-types.ts';
import { SingleUse } from '../rate-limits/limiter-client.ts';
import { accountById } from './accounts.ts';
import { type LoginResponse, loginResponse, signIn, tokensSealContext } from './first-factor.ts';
import type { SecondFactorContext } from './second-factor.ts';
import type { Person } from './sign-in-context.ts';

const SealedTokens = z.object({
  accessToken: z.string(),
  refreshToken: z.string().nullable(),
  accessExpiresAt: z.coerce.date(),
});

/**
 * The person who has passed the first factor.
 * @throws ApiError UNAUTHENTICATED when the account was deleted, its password changed or its sessions ended since then
 */
export async function personOf({ settings, db, preAuth }: SecondFactorContext): Promise<Person> {
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
