import { actorWith } from '../../audit/actor.ts';
import { auditEvent } from '../../audit/audit-event.ts';
import type { Principal } from '../../authentication/principal.ts';
import { auditEvents } from '../../database/schema.ts';
import { materialize } from '../../tenancy/materialize.ts';
import type { SecondFactorMethod } from '../second-factor/second-factor-method.ts';
import type { SignInContext } from '../sign-in-context.ts';
import type { LoginResponse } from './login-response.ts';
import { identityOfPerson, type Person, tokensFor } from './person.ts';
import type { Tokens } from './sessions.ts';

/** The factors of a sign-in, for the audit log. */
interface UsedFactors {
  first_factor: 'password' | 'email' | 'idp';
  second_factor: SecondFactorMethod | 'recovery_code' | 'skipped' | null;
}

export interface SignedIn {
  tokens: Tokens;
  /** Null for a user without a tenant, who is not materialized (specification 2.8). */
  principal: Principal | null;
}

/**
 * Completes a sign-in after its last step: materializes the user, issues the tokens and writes the audit event.
 * @throws ApiError UNAUTHENTICATED, KEYS_UNAVAILABLE for invalid tokens of the provider
 */
export async function signIn(
  context: SignInContext,
  person: Person,
  factors: UsedFactors,
): Promise<SignedIn> {
  const { env, db, client } = context;
  const now = context.now();
  const identity = await identityOfPerson(context, person, now);
  const { tenantId } = identity;
  const principal = tenantId === null ? null : await materialize(env.DB, { ...identity, tenantId }, now);
  const tokens = await tokensFor(context, person, now);
  if (principal) {
    const metadata = { ...factors };
    const event = auditEvent('sign_in.succeeded', actorWith(client, principal), { metadata }, now);
    await db.insert(auditEvents).values(event);
  }
  return { tokens, principal };
}

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
