import { and, eq, exists, gt, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { actorWith, auditEvent } from '../audit/audit-event.ts';
import type { Principal } from '../authentication/principal.ts';
import { inOneBatch, insertIf } from '../database/database.ts';
import { accounts, sessions } from '../database/people-schema.ts';
import { auditEvents } from '../database/schema.ts';
import { deleteSessions, endSession, sessionMetadata } from './sessions.ts';
import type { SignInContext } from './sign-in-context.ts';

export const Session = z
  .strictObject({
    id: z.uuid(),
    ip: z.string().nullable().meta({ description: 'Client address of the sign-in.', example: '203.0.113.7' }),
    user_agent: z.string().nullable().meta({ description: 'Client of the sign-in.', example: 'curl/8.9.1' }),
    created_at: z.iso.datetime(),
    last_used_at: z.iso.datetime().meta({ description: 'When its tokens were issued last.' }),
    is_current: z.boolean().meta({ description: 'Whether the token of this request belongs to it.' }),
  })
  .meta({ id: 'Session' });

export const toSessionResponse = (
  row: typeof sessions.$inferSelect,
  currentId: string | undefined,
): z.output<typeof Session> => ({
  id: row.id,
  ip: row.ip,
  user_agent: row.userAgent,
  created_at: row.createdAt.toISOString(),
  last_used_at: row.lastUsedAt.toISOString(),
  is_current: row.id === currentId,
});

/** The open sessions of a bearer. A user of the provider has none here. */
export const isSessionOf = ({ sessionId, gid }: Pick<Principal, 'sessionId' | 'gid'>, now: Date) =>
  sessionId === undefined ? sql`false` : and(eq(sessions.accountId, gid), gt(sessions.expiresAt, now));

/** Ends one session of the principal. @returns or NOT_FOUND, MANAGED_BY_PROVIDER */
export async function endOwnSession(
  { db, client, now }: SignInContext,
  principal: Principal | null,
  id: string,
): Promise<Result<null, Failure>> {
  if (principal?.sessionId === undefined) return fail({ code: 'MANAGED_BY_PROVIDER' });
  const event = auditEvent('session.ended', actorWith(client, principal), sessionMetadata(id), now());
  const ended = await endSession(db, id, event, principal.gid);
  return ended.ok ? ok(null) : ended;
}

/**
 * Ends all sessions of the principal, that of the request included, and the sign-ins that have begun.
 * @returns or MANAGED_BY_PROVIDER
 */
export async function endAllSessions(
  { db, client, now }: SignInContext,
  principal: Principal | null,
): Promise<Result<null, Failure>> {
  if (principal?.sessionId === undefined) return fail({ code: 'MANAGED_BY_PROVIDER' });
  const ofAccount = eq(sessions.accountId, principal.gid);
  const open = exists(db.select({ id: sessions.id }).from(sessions).where(ofAccount));
  const event = auditEvent(
    'session.ended',
    actorWith(client, principal),
    { metadata: { session_id: 'all' } },
    now(),
  );
  await inOneBatch(db, [
    insertIf(db, auditEvents, event, open),
    ...deleteSessions(db, ofAccount),
    db
      .update(accounts)
      .set({ version: sql`${accounts.version} + 1` })
      .where(eq(accounts.id, principal.gid)),
  ]);
  return ok(null);
}
