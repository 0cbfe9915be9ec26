import { and, eq, gt, inArray, isNull, lte, or, type SQL, sql } from 'drizzle-orm';
import { decodeJwt } from 'jose';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { actorWith, auditEvent, type ClientDetails } from '../audit/audit-event.ts';
import { signOwnToken, verifyOwnToken } from '../authentication/own-tokens.ts';
import type { Identity, Principal } from '../authentication/principal.ts';
import { rejection } from '../authentication/rejection.ts';
import type { AuditActor } from '../database/column-types.ts';
import { type Database, insertIf, isThere, type Statement } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { type AccountRow, accounts, refreshTokens, sessions } from '../database/people-schema.ts';
import { auditEvents } from '../database/schema.ts';
import type { Settings } from '../settings.ts';
import { accountById } from './accounts.ts';
import { renewTokens, revokeToken } from './identity-provider.ts';
import type { SignInContext, Tokens } from './sign-in-context.ts';

/** Two tabs may present the same refresh token within this time. A later use is treated as theft. */
export const CONCURRENT_USE_MS = 10_000;

type UnusedToken = Omit<typeof refreshTokens.$inferSelect, 'usedAt'>;

const nextToken = (settings: Settings, accountId: string, familyId: string, now: Date): UnusedToken => ({
  id: crypto.randomUUID(),
  familyId,
  accountId,
  expiresAt: after(now, settings.JWT_REFRESH_TTL_SECONDS),
});

const after = (now: Date, seconds: number) => new Date(now.getTime() + seconds * 1000);

/** An expired token is refused without its row, because the token itself contains the expiry. */
const deleteExpired = (db: Database, now: Date): Statement[] => [
  db.delete(refreshTokens).where(lte(refreshTokens.expiresAt, now)),
  db.delete(sessions).where(lte(sessions.expiresAt, now)),
];

/**
 * Opens a session and starts its family of refresh tokens.
 * @param account as read when the sign-in began
 * @returns or UNAUTHENTICATED when its password has changed or its sessions were ended since then
 */
export async function openSession(
  db: Database,
  settings: Settings,
  account: AccountRow,
  { ip, userAgent }: Pick<ClientDetails, 'ip' | 'userAgent'>,
  now: Date,
): Promise<Result<Tokens, Failure>> {
  const next = nextToken(settings, account.id, crypto.randomUUID(), now);
  const { familyId: id, accountId, expiresAt } = next;
  const session = { id, accountId, ip, userAgent, lastUsedAt: now, expiresAt, createdAt: now };
  const isUnchanged = and(eq(accounts.id, accountId), eq(accounts.version, account.version));
  const opened = await guardedWrite(db, {
    first: [sessions, session],
    require: [[isThere(accounts, isUnchanged), rejection('session_ended')]],
    rest: (isWritten) => [insertIf(db, refreshTokens, next, isWritten), ...deleteExpired(db, now)],
  });
  return opened.ok ? ok(await issueTokens(settings, account, next, now)) : opened;
}

/**
 * New tokens for an unused refresh token. A second use comes from another tab or follows a theft: after a
 * theft either the thief or the owner is the second to use it, and the whole family ends (RFC 9700 section
 * 4.14). A family has no maximum lifetime: each renewal extends it by `JWT_REFRESH_TTL_SECONDS`.
 * @param actorOf the actor in the audit event of a theft
 * @param reusableForMs how long after its first use a token is renewed again: each tab of a page gets tokens
 *   of its own, and a page that was reloaded before it received its cookie stays signed in
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
  }: { actorOf: (account: AccountRow) => AuditActor; now: Date; reusableForMs?: number },
): Promise<Result<Tokens, Failure>> {
  const verified = await verifyOwnToken(settings, 'refresh', refreshToken, now);
  if (!verified.ok) return refused(verified.failure.reason);
  const { jti, sub, sid } = verified.value;
  const reusable = gt(refreshTokens.usedAt, new Date(now.getTime() - reusableForMs));
  const isUsable = and(
    eq(refreshTokens.id, jti),
    reusableForMs > 0 ? or(isNull(refreshTokens.usedAt), reusable) : isNull(refreshTokens.usedAt),
  );
  const next = nextToken(settings, sub, sid, now);
  // The first use starts the time in which the token can be used again.
  const use = { usedAt: sql`coalesce(${refreshTokens.usedAt}, ${now.getTime()})` };
  const written = await guardedWrite(db, {
    first: (isAllowed) =>
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
    returns: accountById(db, sub),
  });
  const [renewed] = written.ok ? written.value : [];
  if (renewed) return ok(await issueTokens(settings, renewed, next, now));

  const [used] = await db
    .select({ usedAt: refreshTokens.usedAt, account: accounts })
    .from(refreshTokens)
    .innerJoin(accounts, eq(accounts.id, refreshTokens.accountId))
    .where(eq(refreshTokens.id, jti));
  if (!used?.usedAt) return refused('no refresh token of a session');
  if (now.getTime() - used.usedAt.getTime() > CONCURRENT_USE_MS) {
    const actor = actorOf(used.account);
    await endSession(db, sid, auditEvent('session.stolen', actor, sessionMetadata(sid), now));
  }
  return refused('a refresh token that was used');
}

/** The details of an audit event about a session. */
export const sessionMetadata = (familyId: string) => ({ metadata: { session_id: familyId } });

const refused = (reason = 'not valid') => fail({ code: 'REFRESH_TOKEN_WRONG' as const, reason });

/**
 * Ends the sessions of this condition, with all their tokens. Access tokens are refused within 30 s
 * (`materialize`).
 */
export function deleteSessions(db: Database, condition: SQL | undefined): Statement[] {
  const ended = db.select({ id: sessions.id }).from(sessions).where(condition);
  return [
    db.delete(refreshTokens).where(inArray(refreshTokens.familyId, ended)),
    db.delete(sessions).where(condition),
  ];
}

/**
 * Ends a session.
 * @param event stored only by the call that ends it
 * @param accountId whose session it has to be; left out: of any account
 * @returns or NOT_FOUND if it was not open
 */
export function endSession(
  db: Database,
  id: string,
  event: ReturnType<typeof auditEvent>,
  accountId?: string,
): Promise<Result<unknown, Failure>> {
  const isSession = and(
    eq(sessions.id, id),
    accountId === undefined ? undefined : eq(sessions.accountId, accountId),
  );
  return guardedWrite(db, {
    first: [auditEvents, event],
    require: [[isThere(sessions, isSession), 'NOT_FOUND']],
    rest: (isWritten) => deleteSessions(db, and(isSession, isWritten)),
  });
}

async function issueTokens(
  settings: Settings,
  account: AccountRow,
  { id, familyId, expiresAt }: UnusedToken,
  issuedAt: Date,
): Promise<Tokens> {
  const { id: sub, email, role, tenantId } = account;
  const accessExpiresAt = after(issuedAt, settings.JWT_ACCESS_TTL_SECONDS);
  const scp = ['read', 'write'].map((scope) => `${settings.SERVICE_NAME}:${scope}`);
  const [accessToken, refreshToken] = await Promise.all([
    signOwnToken(
      settings,
      'access',
      { sub, email, role, scp, tenant_id: tenantId, sid: familyId },
      { issuedAt, expiresAt: accessExpiresAt },
    ),
    signOwnToken(settings, 'refresh', { sub, sid: familyId, jti: id }, { issuedAt, expiresAt }),
  ]);
  return { accessToken, refreshToken, accessExpiresAt };
}

/**
 * Whether the token names the gateway as its issuer. The issuer is verified later, by the gateway or the
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
export function refresh(
  context: SignInContext,
  refreshToken: string,
  reuse: { reusableForMs?: number } = {},
): Promise<Result<Tokens, Failure>> {
  const { db, settings, client } = context;
  if (!isOwnRefreshToken(settings, refreshToken)) return renewTokens(context, refreshToken);
  // The user of a stolen token is known, the client that presents it is not.
  const actorOf = ({ email, tenantId }: AccountRow) => actorWith(client, { userId: null, email, tenantId });
  return renewSession(db, settings, refreshToken, { actorOf, now: context.now(), ...reuse });
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
    await endSession(db, sessionId, ended(principal, sessionMetadata(sessionId)));
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
