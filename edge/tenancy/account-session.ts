import { and, eq, gt } from 'drizzle-orm';
import type { Identity } from '../authentication/principal.ts';
import { rejected } from '../authentication/rejection.ts';
import { accounts, sessions } from '../database/account-schema.ts';
import type { Database } from '../database/database.ts';

/**
 * The current role of the account that an access token of the gateway belongs to; null for a token without a session.
 * @throws ApiError UNAUTHENTICATED when the session was ended
 */
export async function currentAccountRole(
  db: Database,
  { sessionId, gid }: Identity,
  now: Date,
): Promise<string | null> {
  if (sessionId === undefined) return null;
  const [account] = await db
    .select({ role: accounts.role })
    .from(sessions)
    .innerJoin(accounts, eq(accounts.id, sessions.accountId))
    .where(and(eq(sessions.id, sessionId), eq(sessions.accountId, gid), gt(sessions.expiresAt, now)));
  if (!account) throw rejected('session_ended');
  return account.role;
}
