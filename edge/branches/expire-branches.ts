import { and, eq, lte, type SQL, sql } from 'drizzle-orm';
import { nextAccessRevision } from '../access/access-revision.ts';
import { noActor } from '../audit/actor.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { type Database, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, projectBranches } from '../database/schema.ts';
import type { Settings } from '../settings.ts';
import { isAllowed, transition } from './branch-transition.ts';

/**
 * When a branch that expires now is deleted. It needs no slot meanwhile, so it is not kept for longer than it had one:
 * otherwise lives of a minute would fill the host. Counted from now: nobody had notice of the deletion before, however
 * late the expiry is.
 */
const deletesAt = (maxSeconds: number, now: Date): SQL<Date> =>
  sql`${now.getTime()} + min(${maxSeconds}, coalesce(${projectBranches.ttlSeconds}, ${maxSeconds})) * 1000`;

/**
 * Expires the project's branches whose lifespan has ended (specification 3.1), with their audit events, in one batch
 * that also changes the access: applying it closes their logins and ends their sessions.
 */
export async function expireBranches(
  db: Database,
  { EXPIRED_RETENTION_SECONDS }: Pick<Settings, 'EXPIRED_RETENTION_SECONDS'>,
  projectId: string,
  now: Date,
): Promise<void> {
  const due = and(eq(projectBranches.projectId, projectId), lte(projectBranches.expiresAt, now));
  const dueRows = await db
    .select()
    .from(projectBranches)
    .where(and(due, eq(projectBranches.status, 'active')));
  if (dueRows.length === 0) return;
  await inOneBatch(db, [
    ...dueRows.map(({ id, tenantId, branchName, expiresAt, ttlSeconds }) => {
      const retention = Math.min(EXPIRED_RETENTION_SECONDS, ttlSeconds ?? EXPIRED_RETENTION_SECONDS);
      const metadata = {
        branch_name: branchName,
        expires_at: expiresAt?.toISOString(),
        deletes_at: new Date(now.getTime() + retention * 1000).toISOString(),
      };
      const about = { projectId, branchId: id, metadata };
      const event = auditEvent('branch.expired', noActor(tenantId), about, now);
      return insertIf(db, auditEvents, event, isAllowed('expire', and(due, eq(projectBranches.id, id))));
    }),
    nextAccessRevision(db, projectId, isAllowed('expire', due)),
    transition(db, 'expire', due, now, deletesAt(EXPIRED_RETENTION_SECONDS, now)),
  ]);
}
