import { and, eq, exists, isNull, lte } from 'drizzle-orm';
import type { AuditActor } from '../../audit/actor.ts';
import { auditEvent } from '../../audit/audit-event.ts';
import { signOwnToken, verifyOwnToken } from '../../authentication/own-tokens.ts';
import { refreshTokens } from '../../database/account-schema.ts';
import { changesOf, type Database, inOneBatch, insertIf } from '../../database/database.ts';
import { auditEvents } from '../../database/schema.ts';
import { ApiError } from '../../errors.ts';
import type { Settings } from '../../settings.ts';
import { type AccountRow, accountById } from '../accounts/accounts.ts';

/** Two tabs may come with the same refresh token; after that time it is somebody else who does. */
const TWO_TABS_MS = 10_000;

/** What a sign-in or a renewal ends in; the gateway's own tokens or the provider's. */
export interface Tokens {
  accessToken: string;
  refreshToken: string | null;
  accessExpiresAt: Date;
}

type Next = Omit<typeof refreshTokens.$inferSelect, 'usedAt'>;

const nextToken = (settings: Settings, accountId: string, familyId: string, now: Date): Next => ({
  id: crypto.randomUUID(),
  familyId,
  accountId,
  expiresAt: after(now, settings.JWT_REFRESH_TTL_SECONDS),
});

const after = (now: Date, seconds: number) => new Date(now.getTime() + seconds * 1000);

/** A token says no more than its row: once it is too old, who presents it is told so without the row. */
const forgetExpired = (db: Database, now: Date) =>
  db.delete(refreshTokens).where(lte(refreshTokens.expiresAt, now));

/** Opens a family of refresh tokens. */
export async function openSession(
  db: Database,
  settings: Settings,
  account: AccountRow,
  now: Date,
): Promise<Tokens> {
  const next = nextToken(settings, account.id, crypto.randomUUID(), now);
  await inOneBatch(db, [forgetExpired(db, now), db.insert(refreshTokens).values(next)]);
  return tokensOf(settings, account, next, now);
}

/**
 * New tokens for a refresh token that was not used yet. One that was comes from two tabs, or was stolen: of the thief
 * and its owner one comes second, and then neither gets more (RFC 9700 section 4.14).
 * The family's life has no bound: each renewal gives it another `JWT_REFRESH_TTL_SECONDS`.
 * @param about who asks, for the audit row of a theft
 * @throws ApiError REFRESH_TOKEN_WRONG
 */
export async function renewSession(
  db: Database,
  settings: Settings,
  refreshToken: string,
  { about, now }: { about: (account: AccountRow) => AuditActor; now: Date },
): Promise<Tokens> {
  const { jti, sub, sid } = await verifyOwnToken(settings, 'refresh', refreshToken, now).catch((error) => {
    throw error instanceof ApiError ? wrong(error.message) : error;
  });
  const isUnused = and(eq(refreshTokens.id, jti), isNull(refreshTokens.usedAt));
  const next = nextToken(settings, sub, sid, now);
  const unused = db.select({ id: refreshTokens.id }).from(refreshTokens).where(isUnused);
  const [, taken, rows, accountRows] = await inOneBatch(db, [
    insertIf(db, refreshTokens, next, exists(unused)),
    db.update(refreshTokens).set({ usedAt: now }).where(isUnused),
    db.select().from(refreshTokens).where(eq(refreshTokens.id, jti)),
    accountById(db, sub),
    forgetExpired(db, now),
  ]);
  const [account] = accountRows as AccountRow[];
  if (account && changesOf(taken) === 1) return tokensOf(settings, account, next, now);

  const [used] = rows as (typeof refreshTokens.$inferSelect)[];
  if (!account || !used?.usedAt) throw wrong('no refresh token of a session');
  if (now.getTime() - used.usedAt.getTime() > TWO_TABS_MS) {
    await endSession(db, sid, auditEvent('session.stolen', about(account), sessionNamed(sid), now));
  }
  throw wrong('a refresh token that was used');
}

/** What an audit row says of a session. */
export const sessionNamed = (familyId: string) => ({ metadata: { session_id: familyId } });

const wrong = (reason: string) => new ApiError('REFRESH_TOKEN_WRONG', undefined, reason);

/**
 * Ends the family: none of its refresh tokens gets anything more. Its access tokens last until they expire.
 * @param event recorded once, by whoever comes first to a family that lives
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

async function tokensOf(
  settings: Settings,
  account: AccountRow,
  { id, familyId, expiresAt }: Next,
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
