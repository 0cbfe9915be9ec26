import { type PreAuth, signOwnToken } from '../../authentication/own-tokens.ts';
import { seal } from '../../credentials/seal.ts';
import { materialize } from '../../tenancy/materialize.ts';
import { STEP_WITHOUT_FACTOR, secondFactorOf } from '../second-factor/second-factor.ts';
import type { SignInContext } from '../sign-in-context.ts';
import { loginResponse, signIn } from './complete-sign-in.ts';
import type { LoginResponse } from './login-response.ts';
import { identityOfPerson, type Person } from './person.ts';

/** Lifetime of a pre-auth token (specification 5): an enrolment takes longer than reading a code. */
const PRE_AUTH_SECONDS: Record<PreAuth['step'], number> = { verify: 5 * 60, setup: 60 * 60 };

/** The associated data under which the provider's tokens are sealed into a pre-auth token. */
export const tokensSealContext = (preAuthId: string) => ['pre_auth', preAuthId];

/** Continues after the first factor: with tokens, or with a pre-auth token for the second step (specification 3.3). */
export async function completeFirstFactor(
  context: SignInContext,
  person: Person,
  firstFactor: PreAuth['first_factor'],
): Promise<LoginResponse> {
  const { env, db, settings } = context;
  const now = context.now();
  const identity = await identityOfPerson(context, person, now);
  const { issuer, gid, email, tenantId } = identity;
  // Before the second step, so that the owners of a tenant see and can remove a member who has not completed it.
  if ('account' in person && tenantId !== null) await materialize(env.DB, { ...identity, tenantId }, now);
  const [enrolled] = await secondFactorOf(db, { issuer, gid });
  const step = enrolled ? 'verify' : STEP_WITHOUT_FACTOR[settings.TWO_FACTOR][firstFactor];
  if (step === null) {
    return loginResponse(await signIn(context, person, { first_factor: firstFactor, second_factor: null }));
  }
  const jti = crypto.randomUUID();
  const sealed =
    'tokens' in person
      ? await seal(settings.CREDENTIAL_KEYS, tokensSealContext(jti), JSON.stringify(person.tokens))
      : null;
  const preAuthToken = await signOwnToken(
    settings,
    'pre_auth',
    {
      user: { issuer, gid, email },
      step,
      first_factor: firstFactor,
      sealed,
      version: 'account' in person ? person.account.version : null,
      jti,
    },
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
