import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import { actorWith, auditEvent } from '../audit/audit-event.ts';
import { type PreAuth, signOwnToken } from '../authentication/own-tokens.ts';
import type { Identity, Principal } from '../authentication/principal.ts';
import { seal } from '../crypto/seal.ts';
import { SECOND_FACTOR_METHODS, type SecondFactorMethod } from '../database/column-types.ts';
import { auditEvents } from '../database/schema.ts';
import { materialize } from '../tenancy/users.ts';
import { identityOfPerson, type Person, tokensFor } from './person.ts';
import { STEP_WITHOUT_FACTOR, secondFactorOf } from './second-factor.ts';
import type { SignInContext, Tokens } from './sign-in-context.ts';

const Token = z.string().nullable();

export const SignedInUser = z.strictObject({
  id: z.uuid(),
  email: z.string().meta({ example: 'ada@example.com' }),
  role: z.string().meta({ example: 'owner' }),
});

/** Specification 4.2. */
export const LoginResponse = z
  .strictObject({
    access_token: Token,
    refresh_token: Token,
    pre_auth_token: Token.meta({
      description:
        'The bearer token for the second step, if one is required. It expires after 5 minutes, for an enrolment after 60.',
    }),
    requires_2fa: z.boolean().meta({ description: 'Whether a code of the second factor is required.' }),
    requires_2fa_setup: z
      .boolean()
      .meta({ description: 'Whether a second factor must be enrolled or skipped.' }),
    method: z.enum(SECOND_FACTOR_METHODS).nullable(),
    user: z.union([SignedInUser, z.null()]),
  })
  .meta({ id: 'LoginResponse' });
/** A sign-in that made recovery codes, which are in no other response. */
export const LoginWithRecoveryCodes = LoginResponse.extend({
  recovery_codes: z.array(z.string()).meta({
    description:
      'Each signs in once in place of the second factor (`2fa/recover`). Earlier codes are no longer valid. They are not shown again.',
    example: ['k3ud-7xqa-m2pz-w5tc'],
  }),
}).meta({ id: 'LoginWithRecoveryCodes' });

export type LoginResponse = z.output<typeof LoginResponse>;
export type LoginWithRecoveryCodes = z.output<typeof LoginWithRecoveryCodes>;

/** The factors of a sign-in, for the audit log. */
interface UsedFactors {
  first_factor: 'password' | 'email' | 'idp' | 'sso' | 'owner_recovery_code';
  second_factor: SecondFactorMethod | 'recovery_code' | 'skipped' | null;
}

export interface SignedIn {
  tokens: Tokens;
  /** Null for a user without a tenant, who is not materialized (specification 2.8). */
  principal: Principal | null;
}

/**
 * Completes a sign-in after its last step: materializes the user, issues the tokens and writes the audit
 * event.
 * @returns or UNAUTHENTICATED, KEYS_UNAVAILABLE for invalid tokens of the provider
 */
export async function signIn(
  context: SignInContext,
  person: Person,
  factors: UsedFactors,
): Promise<Result<SignedIn, Failure>> {
  const { db, client } = context;
  const now = context.now();
  const identity = await identityOfPerson(context, person, now);
  if (!identity.ok) return identity;
  const user = await userOfTenant(context, identity.value, now);
  if (!user.ok) return user;
  const principal = user.value;
  const issued = await tokensFor(context, person, now);
  if (!issued.ok) return issued;
  if (principal) {
    const metadata = { ...factors };
    const event = auditEvent('sign_in.succeeded', actorWith(client, principal), { metadata }, now);
    await db.insert(auditEvents).values(event);
  }
  return ok({ tokens: issued.value, principal });
}

/** The user in its tenant, created or updated; null without a tenant. @returns or UNAUTHENTICATED */
export const userOfTenant = async (
  { env }: SignInContext,
  { tenantId, ...identity }: Identity,
  now: Date,
): Promise<Result<Principal | null, Failure>> =>
  tenantId === null ? ok(null) : materialize(env.DB, { ...identity, tenantId }, now);

export function loginResponse({ tokens, principal }: SignedIn): LoginResponse {
  return {
    access_token: tokens.accessToken,
    refresh_token: tokens.refreshToken,
    pre_auth_token: null,
    requires_2fa: false,
    requires_2fa_setup: false,
    method: null,
    user: principal && { id: principal.userId, email: principal.email, role: principal.role },
  };
}

/** Lifetime of a pre-auth token (specification 5): an enrolment takes longer than reading a code. */
const PRE_AUTH_SECONDS: Record<PreAuth['step'], number> = { verify: 5 * 60, setup: 60 * 60 };

/** The associated data under which the provider's tokens are sealed into a pre-auth token. */
export const tokensSealContext = (preAuthId: string) => ['pre_auth', preAuthId];

/**
 * Continues after the first factor: with tokens, or with a pre-auth token for the second step (specification
 * 3.3).
 */
export async function completeFirstFactor(
  context: SignInContext,
  person: Person,
  firstFactor: PreAuth['first_factor'],
): Promise<Result<LoginResponse, Failure>> {
  const { db, settings } = context;
  const now = context.now();
  const identity = await identityOfPerson(context, person, now);
  if (!identity.ok) return identity;
  const { issuer, gid, email } = identity.value;
  // Before the second step, so that the owners of a tenant see and can remove a member who has not completed
  // it.
  const user = 'account' in person ? await userOfTenant(context, identity.value, now) : ok(null);
  if (!user.ok) return user;
  const [enrolled] = await secondFactorOf(db, { issuer, gid });
  const step = enrolled ? 'verify' : STEP_WITHOUT_FACTOR[settings.TWO_FACTOR][firstFactor];
  if (step === null) {
    const signedIn = await signIn(context, person, { first_factor: firstFactor, second_factor: null });
    return signedIn.ok ? ok(loginResponse(signedIn.value)) : signedIn;
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
  return ok({
    access_token: null,
    refresh_token: null,
    pre_auth_token: preAuthToken,
    requires_2fa: step === 'verify',
    requires_2fa_setup: step === 'setup',
    method: enrolled?.method ?? null,
    user: null,
  });
}

/**
 * The user whose sign-in was attempted; undefined when there is none. A user without a tenant has no audit
 * log.
 */
type Identify = () => Promise<{ email: string; tenantId: string | null } | undefined>;

/**
 * Records a failed sign-in in the audit log of the user. It runs concurrently with the response, whose time
 * would otherwise reveal whether the user exists.
 */
export function recordFailedSignIn(
  { db, client, now, waitUntil }: SignInContext,
  identify: Identify,
  metadata: Record<string, unknown>,
): void {
  const record = async () => {
    const user = await identify();
    if (!user?.tenantId) return;
    const actor = actorWith(client, { userId: null, email: user.email, tenantId: user.tenantId });
    await db.insert(auditEvents).values(auditEvent('sign_in.failed', actor, { metadata }, now()));
  };
  waitUntil(record());
}

/**
 * How a sign-in delivers its tokens: all in the response, or the refresh token in a cookie that scripts
 * cannot read.
 */
export const ResponseForm = z.enum(['json', 'page']).default('json').meta({
  description:
    '`page` is for pages of this origin: the refresh token comes as a cookie that only `POST /api/v1/auth/session` accepts, instead of in the response.',
});
export type ResponseForm = z.output<typeof ResponseForm>;

export const ResponseQuery = z.strictObject({ response: ResponseForm });
