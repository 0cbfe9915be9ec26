import { and, eq, exists, gt, inArray, isNull, lte, or, type SQL, sql } from 'drizzle-orm';
import type { AuditActor, ClientDetails } from '../../audit/actor.ts';
import { auditEvent } from '../../audit/audit-event.ts';
import { signOwnToken, verifyOwnToken } from '../../authentication/own-tokens.ts';
import { rejected } from '../../authentication/rejection.ts';
import { accounts, refreshTokens, sessions } from '../../database/account-schema.ts';
import { type Database, hasChanged, inOneBatch, insertIf, type Statement } from '../../database/database.ts';
import { auditEvents } from '../../database/schema.ts';
import { ApiError } from '../../errors.ts';
import type { Settings } from '../../settings.ts';
import { type AccountRow, accountById } from '../accounts/accounts.ts';

/** Two tabs may present the same refresh token within this time. A later use is treated as theft. */
export const CONCURRENT_USE_MS = 10_000;

/** The result of a sign-in or a renewal: tokens of the gateway or of the provider. */
export interface Tokens {
  accessToken: string;
  refreshToken: string | null;
  accessExpiresAt: Date;
}

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
 * @throws ApiError UNAUTHENTICATED when its password has changed or its sessions were ended since then
 */
export async function openSession(
  db: Database,
  settings: Settings,
  account: AccountRow,
  { ip, userAgent }: Pick<ClientDetails, 'ip' | 'userAgent'>,
  now: Date,
): Promise<Tokens> {
  const next = nextToken(settings, account.id, crypto.randomUUID(), now);
  const { familyId: id, accountId, expiresAt } = next;
  const session = { id, accountId, ip, userAgent, lastUsedAt: now, expiresAt, createdAt: now };
  const isUnchanged = and(eq(accounts.id, accountId), eq(accounts.version, account.version));
  const unchanged = exists(db.select({ id: accounts.id }).from(accounts).where(isUnchanged));
  const results = await inOneBatch(db, [
    ...deleteExpired(db, now),
    insertIf(db, refreshTokens, next, unchanged),
    insertIf(db, sessions, session, unchanged),
  ]);
  if (!hasChanged(results.at(-1))) throw rejected('session_ended');
  return issueTokens(settings, account, next, now);
}

/**
 * New tokens for an unused refresh token. A second use comes from another tab or follows a theft: after a theft either
 * the thief or the owner is the second to use it, and the whole family ends (RFC 9700 section 4.14).
 * A family has no maximum lifetime: each renewal extends it by `JWT_REFRESH_TTL_SECONDS`.
 * @param actorOf the actor in the audit event of a theft
 * @param reusableForMs how long after its first use a token is renewed again: each tab of a page gets tokens of its own,
 *   and a page that was reloaded before it received its cookie stays signed in
 * @throws ApiError REFRESH_TOKEN_WRONG
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
): Promise<Tokens> {
  const { jti, sub, sid } = await verifyOwnToken(settings, 'refresh', refreshToken, now).catch((error) => {
    throw error instanceof ApiError ? refused(error.message) : error;
  });
  const reusable = gt(refreshTokens.usedAt, new Date(now.getTime() - reusableForMs));
  const isUsable = and(
    eq(refreshTokens.id, jti),
    reusableForMs > 0 ? or(isNull(refreshTokens.usedAt), reusable) : isNull(refreshTokens.usedAt),
  );
  const next = nextToken(settings, sub, sid, now);
  const usable = db.select({ id: refreshTokens.id }).from(refreshTokens).where(isUsable);
  const [, , update, rows, accountRows] = await inOneBatch(db, [
    insertIf(db, refreshTokens, next, exists(usable)),
    db
      .update(sessions)
      .set({ lastUsedAt: now, expiresAt: next.expiresAt })
      .where(and(eq(sessions.id, sid), exists(usable))),
    db
      .update(refreshTokens)
      // The first use starts the time in which the token can be used again.
      .set({ usedAt: sql`coalesce(${refreshTokens.usedAt}, ${now.getTime()})` })
      .where(isUsable),
    db.select().from(refreshTokens).where(eq(refreshTokens.id, jti)),
    accountById(db, sub),
    ...deleteExpired(db, now),
  ]);
  const [account] = accountRows as AccountRow[];
  if (account && hasChanged(update)) return issueTokens(settings, account, next, now);

  const [used] = rows as (typeof refreshTokens.$inferSelect)[];
  if (!account || !used?.usedAt) throw refused('no refresh token of a session');
  if (now.getTime() - used.usedAt.getTime() > CONCURRENT_USE_MS) {
    await endSession(db, sid, auditEvent('session.stolen', actorOf(account), sessionMetadata(sid), now));
  }
  throw refused('a refresh token that was used');
}

/** The details of an audit event about a session. */
export const sessionMetadata = (familyId: string) => ({ metadata: { session_id: familyId } });

const refused = (reason: string) => new ApiError('REFRESH_TOKEN_WRONG', undefined, reason);

/** Ends the sessions of this condition, with all their tokens. Access tokens are refused within 30 s (`materialize`). */
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
 * @returns whether it was open
 */
export async function endSession(
  db: Database,
  id: string,
  event: ReturnType<typeof auditEvent>,
  accountId?: string,
): Promise<boolean> {
  const isSession = and(
    eq(sessions.id, id),
    accountId === undefined ? undefined : eq(sessions.accountId, accountId),
  );
  const session = db.select({ id: sessions.id }).from(sessions).where(isSession);
  const results = await inOneBatch(db, [
    insertIf(db, auditEvents, event, exists(session)),
    ...deleteSessions(db, isSession),
  ]);
  return hasChanged(results.at(-1));
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
