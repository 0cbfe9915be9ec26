import { type AppContext, databaseOf } from '../../app-env.ts';
import { type PreAuth, signOwnToken } from '../../authentication/own-tokens.ts';
import { seal } from '../../credentials/seal.ts';
import { readSettings } from '../../settings.ts';
import { STEP_WITHOUT_FACTOR, secondFactorOf } from '../second-factor/second-factor.ts';
import { loginResponse, signIn } from './complete-sign-in.ts';
import type { LoginResponse } from './login-response.ts';
import { identityOfPerson, type Person } from './person.ts';

/** How long a pre-auth token holds (spec section 5): setting up takes longer than reading a code. */
const PRE_AUTH_SECONDS: Record<PreAuth['step'], number> = { verify: 5 * 60, setup: 60 * 60 };

/** Where the provider's tokens are sealed into a pre-auth token. */
export const sealedTokensPlace = (preAuthId: string) => ['pre_auth', preAuthId];

/** What follows for a person who has passed the first factor: tokens, or the second step (spec 3.3). */
export async function afterFirstFactor(
  c: AppContext,
  person: Person,
  firstFactor: PreAuth['first_factor'],
): Promise<LoginResponse> {
  const settings = readSettings(c.env);
  const now = new Date();
  const { issuer, gid, email } = await identityOfPerson(c, person, now);
  const [enrolled] = await secondFactorOf(databaseOf(c), { issuer, gid });
  const step = enrolled ? 'verify' : STEP_WITHOUT_FACTOR[settings.TWO_FACTOR][firstFactor];
  if (step === null) {
    return loginResponse(await signIn(c, person, { first_factor: firstFactor, second_factor: null }));
  }
  const jti = crypto.randomUUID();
  const sealed =
    'tokens' in person
      ? await seal(settings.CREDENTIAL_KEYS, sealedTokensPlace(jti), JSON.stringify(person.tokens))
      : null;
  const preAuthToken = await signOwnToken(
    settings,
    'pre_auth',
    { user: { issuer, gid, email }, step, first_factor: firstFactor, sealed, jti },
    { issuedAt: now, expiresAt: new Date(now.getTime() + PRE_AUTH_SECONDS[step] * 1000) },
  );
  return {
    access_token: null,
    refresh_token: null,
    pre_auth_token: preAuthToken,
    requires_2fa: step === 'verify',
    requires_2fa_setup: step === 'setup',
    method: enrolled?.method ?? null,
    user: null,
  };
}
