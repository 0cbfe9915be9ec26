import { and, eq, ne, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { actorWith, auditEvent, type ClientDetails, noActor } from '../audit/audit-event.ts';
import type { Principal } from '../authentication/principal.ts';
import { hashPassword, isPassword } from '../crypto/password-hash.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { type AccountRow, accounts } from '../database/people-schema.ts';
import { auditEvents } from '../database/schema.ts';
import { sessions } from '../database/session-schema.ts';
import { accountByEmail, accountById } from './accounts.ts';
import { withinPasswordAttempts } from './password-attempts.ts';
import { deleteSessions } from './sessions.ts';
import type { SignInContext } from './sign-in-context.ts';

/**
 * Replaces the password of an account and ends its sessions and the sign-ins that have begun.
 * @param keptSession the session that continues
 * @returns or NOT_FOUND if the account has changed since it was read
 */
function setPassword(
  db: Database,
  account: AccountRow,
  passwordHash: string,
  {
    event,
    now,
    keptSession,
  }: { event: ReturnType<typeof auditEvent>; now: Date; keptSession?: string | undefined },
): Promise<Result<unknown, Failure>> {
  const isUnchanged = and(eq(accounts.id, account.id), eq(accounts.version, account.version));
  const others = keptSession === undefined ? undefined : ne(sessions.id, keptSession);
  const next = { passwordHash, version: sql`${accounts.version} + 1`, updatedAt: now };
  return guardedWrite(db, {
    decides: (isAllowed) =>
      db
        .update(accounts)
        .set(next)
        .where(and(eq(accounts.id, account.id), isAllowed)),
    require: [[isThere(accounts, isUnchanged), 'NOT_FOUND']],
    rest: (isAllowed) => [
      insertIf(db, auditEvents, event, isAllowed),
      deleteSessions(db, and(eq(sessions.accountId, account.id), others, isAllowed)),
    ],
  });
}

/** Bounds the attempts of one code: another request may change the account in between each time. */
const TRIES = 5;

/**
 * Sets the password of an address after its mailed code was right. An address without an account changes
 * nothing.
 */
export async function resetPassword(
  db: Database,
  email: string,
  passwordHash: string,
  client: Partial<ClientDetails>,
  now: Date,
): Promise<void> {
  for (let left = TRIES; left > 0; left--) {
    const [account] = await accountByEmail(db, email);
    if (!account) return;
    const actor = { ...noActor(account.tenantId), ...client, email };
    const event = auditEvent('account.password.reset', actor, {}, now);
    const set = await setPassword(db, account, passwordHash, { event, now });
    if (set.ok) return;
  }
  throw new Error('the account was changed by other requests');
}

/**
 * Changes the password of the principal's account. The session of the request continues, all others end.
 * @returns or MANAGED_BY_PROVIDER, PASSWORD_WRONG, RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function changePassword(
  context: SignInContext,
  principal: Principal | null,
  { current, next }: { current: string; next: string },
): Promise<Result<null, Failure>> {
  const { db, settings, client } = context;
  if (principal?.issuer !== settings.BASE_URL) return fail({ code: 'MANAGED_BY_PROVIDER' });
  const [account] = await accountById(db, principal.gid);
  if (!account) return fail({ code: 'PASSWORD_WRONG', reason: 'the account was removed' });
  const right = await withinPasswordAttempts(context, account.email, async () => {
    const checked = await isPassword(current, account.passwordHash, settings.PASSWORD_COST);
    return checked.ok ? ok(checked.value || null) : checked;
  });
  if (!right.ok) return right;
  if (!right.value) return fail({ code: 'PASSWORD_WRONG' });
  const passwordHash = await hashPassword(next, settings.PASSWORD_COST);
  if (!passwordHash.ok) return passwordHash;
  const now = context.now();
  const event = auditEvent('account.password.changed', actorWith(client, principal), {}, now);
  const kept = { event, now, keptSession: principal.sessionId };
  const isSet = await setPassword(db, account, passwordHash.value, kept);
  return isSet.ok ? ok(null) : fail({ code: 'PASSWORD_WRONG' });
}
