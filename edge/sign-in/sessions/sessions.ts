import { and, eq, exists, isNull, lte } from 'drizzle-orm';
import type { AuditActor } from '../../audit/actor.ts';
import { auditEvent } from '../../audit/audit-event.ts';
import { signOwnToken, verifyOwnToken } from '../../authentication/own-tokens.ts';
import { refreshTokens } from '../../database/account-schema.ts';
import { type Database, hasChanged, inOneBatch, insertIf } from '../../database/database.ts';
import { auditEvents } from '../../database/schema.ts';
import { ApiError } from '../../errors.ts';
import type { Settings } from '../../settings.ts';
import { type AccountRow, accountById } from '../accounts/accounts.ts';

/** Two tabs may present the same refresh token within this time. A later use is treated as theft. */
const CONCURRENT_USE_MS = 10_000;

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
const deleteExpired = (db: Database, now: Date) =>
  db.delete(refreshTokens).where(lte(refreshTokens.expiresAt, now));

/** Starts a family of refresh tokens. */
export async function openSession(
  db: Database,
  settings: Settings,
  account: AccountRow,
  now: Date,
): Promise<Tokens> {
  const next = nextToken(settings, account.id, crypto.randomUUID(), now);
  await inOneBatch(db, [deleteExpired(db, now), db.insert(refreshTokens).values(next)]);
  return issueTokens(settings, account, next, now);
}

/**
 * New tokens for an unused refresh token. A second use comes from another tab or follows a theft: after a theft either
 * the thief or the owner is the second to use it, and the whole family ends (RFC 9700 section 4.14).
 * A family has no maximum lifetime: each renewal extends it by `JWT_REFRESH_TTL_SECONDS`.
 * @param actorOf the actor in the audit event of a theft
 * @throws ApiError REFRESH_TOKEN_WRONG
 */
export async function renewSession(
  db: Database,
  settings: Settings,
  refreshToken: string,
  { actorOf, now }: { actorOf: (account: AccountRow) => AuditActor; now: Date },
): Promise<Tokens> {
  const { jti, sub, sid } = await verifyOwnToken(settings, 'refresh', refreshToken, now).catch((error) => {
    throw error instanceof ApiError ? refused(error.message) : error;
  });
  const isUnused = and(eq(refreshTokens.id, jti), isNull(refreshTokens.usedAt));
  const next = nextToken(settings, sub, sid, now);
  const unused = db.select({ id: refreshTokens.id }).from(refreshTokens).where(isUnused);
  const [, update, rows, accountRows] = await inOneBatch(db, [
    insertIf(db, refreshTokens, next, exists(unused)),
    db.update(refreshTokens).set({ usedAt: now }).where(isUnused),
    db.select().from(refreshTokens).where(eq(refreshTokens.id, jti)),
    accountById(db, sub),
    deleteExpired(db, now),
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

/**
 * Ends a family: all its refresh tokens become invalid. Its access tokens remain valid until they expire.
 * @param event stored only by the call that ends the family
 */
export async function endSession(
  db: Database,
  familyId: string,
  event: ReturnType<typeof auditEvent>,
): Promise<void> {
  const isFamily = eq(refreshTokens.familyId, familyId);
  const family = db.select({ id: refreshTokens.id }).from(refreshTokens).where(isFamily);
  await inOneBatch(db, [
    insertIf(db, auditEvents, event, exists(family)),
    db.delete(refreshTokens).where(isFamily),
  ]);
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
