import { type AppContext, actorAs, databaseOf } from '../../app-env.ts';
import { auditEvent } from '../../audit/audit-event.ts';
import type { Principal } from '../../authentication/principal.ts';
import { auditEvents } from '../../database/schema.ts';
import { materialize } from '../../tenancy/materialize.ts';
import type { SecondFactorMethod } from '../second-factor/second-factor-method.ts';
import type { LoginResponse } from './login-response.ts';
import { identityOfPerson, type Person, tokensFor } from './person.ts';
import type { Tokens } from './sessions.ts';

/** How somebody signed in, for the audit log. */
export interface Way {
  first_factor: 'password' | 'email' | 'idp';
  second_factor: SecondFactorMethod | 'skipped' | null;
}

export interface SignedIn {
  tokens: Tokens;
  /** Null for a user of no tenant, who is not materialized (spec 2.8). */
  principal: Principal | null;
}

/**
 * Signs a person in who has passed every step: makes the user, gives the tokens and records it.
 * @throws ApiError UNAUTHENTICATED, KEYS_UNAVAILABLE for tokens of the provider that are not valid
 */
export async function signIn(c: AppContext, person: Person, way: Way): Promise<SignedIn> {
  const now = new Date();
  const identity = await identityOfPerson(c, person, now);
  const { tenantId } = identity;
  const principal = tenantId === null ? null : await materialize(c.env.DB, { ...identity, tenantId }, now);
  const tokens = await tokensFor(c, person, now);
  if (principal) {
    const event = auditEvent('sign_in.succeeded', actorAs(c, principal), { metadata: { ...way } }, now);
    await databaseOf(c).insert(auditEvents).values(event);
  }
  return { tokens, principal };
}

/** Spec 4.2. */
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
