import { and, eq, gt, isNull, lte, or, type SQL, sql } from 'drizzle-orm';
import { decodeJwt } from 'jose';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { actorWith, auditEvent, type ClientDetails } from '../audit/audit-event.ts';
import { signOwnToken, verifyOwnToken } from '../authentication/own-tokens.ts';
import type { Identity, Principal } from '../authentication/principal.ts';
import { rejection } from '../authentication/rejection.ts';
import type { AuditActor } from '../database/column-types.ts';
import { identityProviders, providerPeople } from '../database/company-schema.ts';
import { type Database, insertIf, isThere, type Statement } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { accounts } from '../database/people-schema.ts';
import { auditEvents } from '../database/schema.ts';
import { refreshTokens, type SessionRow, sessions } from '../database/session-schema.ts';
import type { Settings } from '../settings.ts';
import { accountById } from './accounts.ts';
import { type CompanySession, confirmSession } from './company-session.ts';
import { renewTokens, revokeToken } from './provider-tokens.ts';
import type { SignInContext, Tokens } from './sign-in-context.ts';

/** Two tabs may present the same refresh token within this time. A later use is treated as theft. */
export const CONCURRENT_USE_MS = 10_000;

/** The holder of a session: an account, or a person of this provider. */
type Holder = Pick<Identity, 'gid' | 'providerId'>;

/** Returns whether a session is of this holder. */
export const isHeldBy = ({ gid, providerId }: Holder): SQL | undefined =>
  providerId === undefined
    ? eq(sessions.accountId, gid)
    : and(eq(sessions.personId, gid), eq(sessions.providerId, providerId));

type UnusedToken = Omit<typeof refreshTokens.$inferSelect, 'usedAt'>;

/** An account of the gateway, or a person of an identity provider. */
export interface SessionHolder {
  id: string;
  email: string;
  role: string;
  tenantId: string;
  version: number;
  /** The provider of a person; left out for an account. */
  idp?: { id: string; issuer: string };
}

/** @param until when its session ends at the latest; null: each renewal extends it */
const nextToken = (settings: Settings, sessionId: string, now: Date, until: Date | null): UnusedToken => {
  const expiresAt = after(now, settings.JWT_REFRESH_TTL_SECONDS);
  return {
    id: crypto.randomUUID(),
    sessionId,
    expiresAt: until !== null && until < expiresAt ? until : expiresAt,
  };
};

const after = (now: Date, seconds: number) => new Date(now.getTime() + seconds * 1000);

/** An expired token is refused without its row, because the token itself contains the expiry. */
const deleteExpired = (db: Database, now: Date): Statement[] => [
  db.delete(refreshTokens).where(lte(refreshTokens.expiresAt, now)),
  db.delete(sessions).where(lte(sessions.expiresAt, now)),
];

/**
 * Opens a session and issues its first tokens.
 * @param holder as read when the sign-in began
 * @param provider of a person
 * @returns or UNAUTHENTICATED when its password has changed, its sessions were ended or it was disabled since
 *   then
 */
export async function openSession(
  db: Database,
  settings: Settings,
  holder: SessionHolder,
  { ip, userAgent }: Pick<ClientDetails, 'ip' | 'userAgent'>,
  now: Date,
  provider?: CompanySession & { sessionId: string },
): Promise<Result<Tokens, Failure>> {
  const { id: gid, idp } = holder;
  const next = nextToken(settings, provider?.sessionId ?? crypto.randomUUID(), now, provider?.until ?? null);
  const session: SessionRow = {
    id: next.sessionId,
    accountId: idp ? null : gid,
    personId: idp ? gid : null,
    providerId: idp?.id ?? null,
    checkedAt: idp ? now : null,
    keyId: provider?.keyId ?? null,
    sealedRefresh: provider?.sealedRefresh ?? null,
    ip,
    userAgent,
    lastUsedAt: now,
    expiresAt: next.expiresAt,
    createdAt: now,
  };
  const opened = await guardedWrite(db, {
    decides: [sessions, session],
    require: [[isUnchanged(holder), rejection('session_ended')]],
    rest: (isWritten) => [insertIf(db, refreshTokens, next, isWritten), ...deleteExpired(db, now)],
  });
  return opened.ok ? ok(await issueTokens(settings, holder, next, now)) : opened;
}

/** Returns whether a holder is as it was read, and a person may still have sessions. */
function isUnchanged({ id, version, idp }: SessionHolder): SQL {
  if (!idp) return isThere(accounts, and(eq(accounts.id, id), eq(accounts.version, version)));
  const isPerson = and(
    eq(providerPeople.id, id),
    eq(providerPeople.providerId, idp.id),
    eq(providerPeople.version, version),
    eq(providerPeople.active, true),
  );
  return isThere(providerPeople, isPerson);
}

/** The account, or the active person, that a refresh token belongs to. */
const holderById = (db: Database, id: string, providerId: string | undefined) =>
  providerId === undefined
    ? accountById(db, id)
    : db
        .select()
        .from(providerPeople)
        .where(
          and(
            eq(providerPeople.id, id),
            eq(providerPeople.providerId, providerId),
            eq(providerPeople.active, true),
          ),
        );

/**
 * New tokens for an unused refresh token. A second use comes from another tab or follows a theft: after a
 * theft either the thief or the owner is the second to use it, and the session ends (RFC 9700 section
 * 4.14). A session has no maximum lifetime: each renewal extends it by `JWT_REFRESH_TTL_SECONDS`.
 * @param actorOf the actor in the audit event of a theft
 * @param reusableForMs how long after its first use a token is renewed again: each tab of a page gets tokens
 *   of its own, and a page that was reloaded before it received its cookie stays signed in
 * @param until when the session of a person ends at the latest; see `CompanySession`
 * @returns or REFRESH_TOKEN_WRONG
 */
export async function renewSession(
  db: Database,
  settings: Settings,
  refreshToken: string,
  {
    actorOf,
    now,
    reusableForMs = 0,
    until = null,
  }: {
    actorOf: (holder: SessionHolder) => AuditActor;
    now: Date;
    reusableForMs?: number;
    until?: Date | null;
  },
): Promise<Result<Tokens, Failure>> {
  const verified = await verifyOwnToken(settings, 'refresh', refreshToken, now);
  if (!verified.ok) return refused(verified.failure.reason);
  const { jti, sub, sid, idp } = verified.value;
  const reusable = gt(refreshTokens.usedAt, new Date(now.getTime() - reusableForMs));
  const isUsable = and(
    eq(refreshTokens.id, jti),
    reusableForMs > 0 ? or(isNull(refreshTokens.usedAt), reusable) : isNull(refreshTokens.usedAt),
  );
  const next = nextToken(settings, sid, now, until);
  // The first use starts the time in which the token can be used again.
  const use = { usedAt: sql`coalesce(${refreshTokens.usedAt}, ${now.getTime()})` };
  const written = await guardedWrite(db, {
    decides: (isAllowed) =>
      db
        .update(refreshTokens)
        .set(use)
        .where(and(eq(refreshTokens.id, jti), isAllowed)),
    require: [[isThere(refreshTokens, isUsable), 'REFRESH_TOKEN_WRONG']],
    rest: (isAllowed) => [
      insertIf(db, refreshTokens, next, isAllowed),
      db
        .update(sessions)
        .set({ lastUsedAt: now, expiresAt: next.expiresAt })
        .where(and(eq(sessions.id, sid), isAllowed)),
      ...deleteExpired(db, now),
    ],
  });
  const [found] = await holderById(db, sub, idp?.id);
  const holder = found && { ...found, ...(idp && { idp }) };
  if (holder && written.ok) return ok(await issueTokens(settings, holder, next, now));

  const [used] = await db
    .select({ usedAt: refreshTokens.usedAt })
    .from(refreshTokens)
    .where(eq(refreshTokens.id, jti));
  if (!holder || !used?.usedAt) return refused('no refresh token of a session');
  if (now.getTime() - used.usedAt.getTime() > CONCURRENT_USE_MS) {
    const event = auditEvent('session.stolen', actorOf(holder), sessionMetadata(sid), now);
    await endSession(db, sid, event);
  }
  return refused('a refresh token that was used');
}

/** The details of an audit event about a session. */
export const sessionMetadata = (sessionId: string) => ({ metadata: { session_id: sessionId } });

const refused = (reason = 'not valid') => fail({ code: 'REFRESH_TOKEN_WRONG' as const, reason });

/**
 * Ends the sessions of this condition; their refresh tokens and grants end with their rows. Access tokens are refused
 * within 30 s (`materialize`).
 */
export const deleteSessions = (db: Database, condition: SQL | undefined): Statement =>
  db.delete(sessions).where(condition);

/**
 * Ends a session.
 * @param event stored only by the call that ends it
 * @param holder whose session it has to be; left out: anybody's
 * @returns or NOT_FOUND if it was not open
 */
export function endSession(
  db: Database,
  id: string,
  event: ReturnType<typeof auditEvent>,
  holder?: Holder,
): Promise<Result<unknown, Failure>> {
  const isSession = and(eq(sessions.id, id), holder && isHeldBy(holder));
  return guardedWrite(db, {
    decides: [auditEvents, event],
    require: [[isThere(sessions, isSession), 'NOT_FOUND']],
    rest: (isWritten) => [deleteSessions(db, and(isSession, isWritten))],
  });
}

async function issueTokens(
  settings: Settings,
  { id: sub, email, role, tenantId, idp }: SessionHolder,
  { id, sessionId: sid, expiresAt }: UnusedToken,
  issuedAt: Date,
): Promise<Tokens> {
  const provider = idp && { idp: { id: idp.id, issuer: idp.issuer } };
  const accessExpiresAt = after(issuedAt, settings.JWT_ACCESS_TTL_SECONDS);
  const scp = ['read', 'write'].map((scope) => `${settings.SERVICE_NAME}:${scope}`);
  const [accessToken, refreshToken] = await Promise.all([
    signOwnToken(
      settings,
      'access',
      { sub, email, role, scp, tenant_id: tenantId, sid, ...provider },
      { issuedAt, expiresAt: accessExpiresAt },
    ),
    signOwnToken(settings, 'refresh', { sub, sid, jti: id, ...provider }, { issuedAt, expiresAt }),
  ]);
  return { accessToken, refreshToken, accessExpiresAt };
}

/**
 * Returns whether the token names the gateway as its issuer. The issuer is verified later, by the gateway or the
 * provider.
 */
export function isOwnRefreshToken({ BASE_URL }: Settings, refreshToken: string): boolean {
  try {
    return decodeJwt(refreshToken).iss === BASE_URL;
  } catch {
    return false;
  }
}

/**
 * New tokens for a refresh token, from its issuer.
 * @param reuse of a token of the gateway; see `renewSession`
 * @returns or REFRESH_TOKEN_WRONG, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export async function refresh(
  context: SignInContext,
  refreshToken: string,
  reuse: { reusableForMs?: number } = {},
): Promise<Result<Tokens, Failure>> {
  const { db, settings, client } = context;
  if (!isOwnRefreshToken(settings, refreshToken)) return renewTokens(context, refreshToken);
  // The user of a stolen token is known, the client that presents it is not.
  const actorOf = ({ email, tenantId }: SessionHolder) =>
    actorWith(client, { userId: null, email, tenantId });
  const now = context.now();
  const confirmed = await confirmSession(context, refreshToken);
  if (!confirmed.ok) return confirmed;
  const { ended, until } = confirmed.value;
  if (ended) {
    const about = { metadata: { ...sessionMetadata(ended.sessionId).metadata, by: 'identity_provider' } };
    const actor = actorWith(client, { userId: null, email: ended.email, tenantId: ended.tenantId });
    await endSession(db, ended.sessionId, auditEvent('session.ended', actor, about, now));
    return refused('the identity provider refuses the person');
  }
  return renewSession(db, settings, refreshToken, { actorOf, now, until, ...reuse });
}

/**
 * Signs in with a session that was opened before, for a command line that exchanges its code.
 * @returns or SIGN_IN_FAILED when the session or its person has gone
 */
export async function continueSession(
  { db, settings, now: clock }: SignInContext,
  sessionId: string,
): Promise<Result<{ tokens: Tokens; refreshExpiresAt: Date; holder: SessionHolder }, Failure>> {
  const gone = fail({ code: 'SIGN_IN_FAILED' as const, reason: 'the session has gone' });
  const now = clock();
  const [found] = await db
    .select({ session: sessions, person: providerPeople, issuer: identityProviders.issuer })
    .from(sessions)
    .innerJoin(providerPeople, eq(providerPeople.id, sessions.personId))
    .innerJoin(identityProviders, eq(identityProviders.id, providerPeople.providerId))
    .where(and(eq(sessions.id, sessionId), eq(providerPeople.active, true)));
  if (!found || found.session.expiresAt <= now) return gone;
  const { session, person, issuer } = found;
  const until = session.sealedRefresh === null ? session.expiresAt : null;
  const next = nextToken(settings, sessionId, now, until);
  const written = await guardedWrite(db, {
    decides: [refreshTokens, next],
    require: [[isThere(sessions, eq(sessions.id, sessionId)), gone.failure]],
  });
  if (!written.ok) return written;
  const idp = { id: person.providerId, issuer };
  const holder: SessionHolder = { ...person, idp };
  return ok({
    tokens: await issueTokens(settings, holder, next, now),
    refreshExpiresAt: next.expiresAt,
    holder,
  });
}

interface Bearer {
  identity: Identity;
  /** Null without a tenant, and therefore without an audit log. */
  principal: Principal | null;
}

/**
 * Ends the session of the bearer's token. A session of the gateway is named by the token; a session of the
 * provider ends when its refresh token is revoked there.
 * @returns or IDP_UNAVAILABLE
 */
export async function signOut(
  context: SignInContext,
  { identity, principal }: Bearer,
  refreshToken: string | undefined,
): Promise<Result<null, Failure>> {
  const { db, settings, client } = context;
  const { sessionId } = identity;
  const ended = (actor: Principal, details: Parameters<typeof auditEvent>[2]) =>
    auditEvent('session.ended', actorWith(client, actor), details, context.now());
  if (sessionId !== undefined) {
    if (!principal) throw new Error('an access token of the gateway names no tenant');
    await endSession(db, sessionId, ended(principal, sessionMetadata(sessionId)), identity);
    return ok(null);
  }
  // A refresh token of the gateway is not sent to the provider.
  if (refreshToken === undefined || isOwnRefreshToken(settings, refreshToken)) return ok(null);
  const revoked = await revokeToken(context, refreshToken);
  if (revoked.ok && principal) await db.insert(auditEvents).values(ended(principal, {}));
  return revoked;
}

/** The fields of every response that contains tokens (RFC 6749 section 5.1). */
export const TOKEN_FIELDS = {
  access_token: z.string(),
  refresh_token: z.string().nullable().meta({ description: 'Null when the provider issues none.' }),
  token_type: z.enum(['bearer']),
  expires_in: z.int().min(0).meta({ description: 'Seconds until the access token expires.', example: 3600 }),
};

export const tokenFields = ({ accessToken, refreshToken, accessExpiresAt }: Tokens) => ({
  access_token: accessToken,
  refresh_token: refreshToken,
  token_type: 'bearer' as const,
  expires_in: Math.max(0, Math.floor((accessExpiresAt.getTime() - Date.now()) / 1000)),
});
