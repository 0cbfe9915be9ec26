import { and, eq, gt, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { actorWith, auditEvent } from '../audit/audit-event.ts';
import type { Principal } from '../authentication/principal.ts';
import { providerPeople } from '../database/company-schema.ts';
import { inOneBatch, insertIf, isThere } from '../database/database.ts';
import { accounts } from '../database/people-schema.ts';
import { auditEvents } from '../database/schema.ts';
import { type SessionRow, sessions } from '../database/session-schema.ts';
import { deleteSessions, endSession, isHeldBy, sessionMetadata } from './sessions.ts';
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
  row: Pick<SessionRow, 'id' | 'ip' | 'userAgent' | 'createdAt' | 'lastUsedAt'>,
  currentId: string | undefined,
): z.output<typeof Session> => ({
  id: row.id,
  ip: row.ip,
  user_agent: row.userAgent,
  created_at: row.createdAt.toISOString(),
  last_used_at: row.lastUsedAt.toISOString(),
  is_current: row.id === currentId,
});

/** Returns whether a session is an open one of a bearer. A user of the gateway's PASETO provider has none here. */
export const isOpenSessionOf = (
  bearer: Pick<Principal, 'sessionId' | 'gid' | 'providerId'>,
  now: Date,
): SQL | undefined =>
  bearer.sessionId === undefined ? sql`false` : and(isHeldBy(bearer), gt(sessions.expiresAt, now));

/** Ends one session of the principal. @returns or NOT_FOUND, MANAGED_BY_PROVIDER */
export async function endOwnSession(
  { db, client, now }: SignInContext,
  principal: Principal | null,
  id: string,
): Promise<Result<null, Failure>> {
  if (principal?.sessionId === undefined) return fail({ code: 'MANAGED_BY_PROVIDER' });
  const event = auditEvent('session.ended', actorWith(client, principal), sessionMetadata(id), now());
  const ended = await endSession(db, id, event, principal);
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
  const isTheirs = isHeldBy(principal);
  const event = auditEvent(
    'session.ended',
    actorWith(client, principal),
    { metadata: { session_id: 'all' } },
    now(),
  );
  await inOneBatch(db, [
    insertIf(db, auditEvents, event, isThere(sessions, isTheirs)),
    deleteSessions(db, isTheirs),
    db
      .update(accounts)
      .set({ version: sql`${accounts.version} + 1` })
      .where(eq(accounts.id, principal.gid)),
    db
      .update(providerPeople)
      .set({ version: sql`${providerPeople.version} + 1` })
      .where(eq(providerPeople.id, principal.gid)),
  ]);
  return ok(null);
}
