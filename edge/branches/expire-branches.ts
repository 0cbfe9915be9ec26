import { and, eq, lte } from 'drizzle-orm';
import { nextAccessRevision } from '../access/access-revision.ts';
import { noActor } from '../audit/actor.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { type Database, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, projectBranches } from '../database/schema.ts';
import type { Settings } from '../settings.ts';
import { isAllowed, transition } from './branch-transition.ts';

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
  // Counted from now: nobody had notice of the deletion before, however late the expiry is.
  const deletesAt = new Date(now.getTime() + EXPIRED_RETENTION_SECONDS * 1000);
  await inOneBatch(db, [
    ...dueRows.map(({ id, tenantId, branchName, expiresAt }) => {
      const metadata = {
        branch_name: branchName,
        expires_at: expiresAt?.toISOString(),
        deletes_at: deletesAt.toISOString(),
      };
      const about = { projectId, branchId: id, metadata };
      const event = auditEvent('branch.expired', noActor(tenantId), about, now);
      return insertIf(db, auditEvents, event, isAllowed('expire', and(due, eq(projectBranches.id, id))));
    }),
    nextAccessRevision(db, projectId, isAllowed('expire', due)),
    transition(db, 'expire', due, now, deletesAt),
  ]);
}
