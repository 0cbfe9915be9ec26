import { and, eq } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { verifyOwnToken } from '../authentication/own-tokens.ts';
import { seal, unseal } from '../crypto/seal.ts';
import { identityProviders, providerPeople } from '../database/company-schema.ts';
import { hasChanged } from '../database/database.ts';
import { sessions } from '../database/session-schema.ts';
import { roleValues } from '../identity-providers/claims.ts';
import { confirmByOpenId } from '../identity-providers/openid.ts';
import { renewClaims } from '../identity-providers/people.ts';
import type { Settings } from '../settings.ts';
import type { SignInContext } from './sign-in-context.ts';

/** Columns of a session about the identity provider that it was opened with. */
export interface CompanySession {
  keyId: string | null;
  sealedRefresh: string | null;
  /** When a session without a refresh token of the provider ends. */
  until: Date | null;
}

/** A provider is asked at most once in this time whether a person may continue. */
const CONFIRMED_FOR_MS = 15 * 60_000;

const refreshContext = (sessionId: string) => ['provider_session', sessionId];

/** Columns of a new session. A session without a refresh token of the provider ends at a fixed time. */
export async function companySession(
  { CREDENTIAL_KEYS, SSO_SESSION_SECONDS }: Settings,
  sessionId: string,
  refreshToken: string | null,
  now: Date,
): Promise<CompanySession> {
  if (refreshToken === null) {
    return { keyId: null, sealedRefresh: null, until: new Date(now.getTime() + SSO_SESSION_SECONDS * 1000) };
  }
  const { keyId, sealed } = await seal(CREDENTIAL_KEYS, refreshContext(sessionId), refreshToken);
  return { keyId, sealedRefresh: sealed, until: null };
}

interface Confirmation {
  /** The session, if the provider refuses its person. */
  ended?: { sessionId: string; email: string; tenantId: string };
  /** When the session ends at the latest; null for an account of the gateway: each renewal extends it. */
  until: Date | null;
}

const UNLIMITED: Confirmation = { until: null };

/**
 * `confirmCompanySession` for the session of a refresh token, before that is used.
 * @returns as `confirmCompanySession`
 */
export async function confirmSession(
  context: SignInContext,
  refreshToken: string,
): Promise<Result<Confirmation, Failure>> {
  const verified = await verifyOwnToken(context.settings, 'refresh', refreshToken, context.now());
  // `renewSession` refuses it.
  if (!verified.ok || !verified.value.idp) return ok(UNLIMITED);
  const { sid: sessionId, idp, sub: personId } = verified.value;
  return confirmCompanySession(context, { sessionId, personId, providerId: idp.id });
}

/**
 * Asks the provider of a person, at most every 15 minutes, whether the session may go on. Of concurrent
 * renewals one asks, because a provider may end a sign-in whose refresh token is used twice.
 * @returns or REFRESH_TOKEN_WRONG when the session has ended; IDP_UNAVAILABLE, SSO_MISCONFIGURED: the session
 *   stays, and the renewal can be tried again
 */
export async function confirmCompanySession(
  { db, settings, now: clock }: SignInContext,
  { sessionId: sid, personId, providerId }: Record<'sessionId' | 'personId' | 'providerId', string>,
): Promise<Result<Confirmation, Failure>> {
  const now = clock();
  const isIt = and(
    eq(sessions.id, sid),
    eq(sessions.personId, personId),
    eq(sessions.providerId, providerId),
  );
  const [found] = await db
    .select({ session: sessions, provider: identityProviders, person: providerPeople })
    .from(sessions)
    .innerJoin(identityProviders, eq(identityProviders.id, sessions.providerId))
    .innerJoin(providerPeople, eq(providerPeople.id, sessions.personId))
    .where(isIt);
  if (!found) return fail({ code: 'REFRESH_TOKEN_WRONG', reason: 'no session of a person' });
  const { session, provider, person } = found;
  const { keyId, sealedRefresh, checkedAt } = session;
  if (keyId === null || sealedRefresh === null || checkedAt === null) return ok({ until: session.expiresAt });
  const until = new Date(session.createdAt.getTime() + settings.SSO_SESSION_MAX_SECONDS * 1000);
  if (until <= now) return fail({ code: 'REFRESH_TOKEN_WRONG', reason: 'the longest life of a session' });
  if (now.getTime() - checkedAt.getTime() < CONFIRMED_FOR_MS) return ok({ until });
  const asRead = and(isIt, eq(sessions.checkedAt, checkedAt));
  const claimed = await db.update(sessions).set({ checkedAt: now }).where(asRead).run();
  if (!hasChanged(claimed)) return ok({ until });
  const sealed = { keyId, sealed: sealedRefresh };
  const confirmed = await unseal(settings.CREDENTIAL_KEYS, refreshContext(sid), sealed).then((token) =>
    confirmByOpenId(provider, settings, token, person.subject),
  );
  if (!confirmed.ok) {
    await db.update(sessions).set({ checkedAt }).where(isIt);
    return confirmed;
  }
  if (confirmed.value === null) {
    const { email, tenantId } = person;
    return ok({ ended: { sessionId: sid, email, tenantId }, until: null });
  }
  const { refreshToken: nextToken, claims } = confirmed.value;
  const next = await seal(settings.CREDENTIAL_KEYS, refreshContext(sid), nextToken);
  await db.update(sessions).set({ keyId: next.keyId, sealedRefresh: next.sealed }).where(isIt);
  if (claims) await renewClaims(db, provider, person.id, roleValues(provider, claims));
  return ok({ until });
}
