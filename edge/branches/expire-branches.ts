import { and, eq, gt, lte, min } from 'drizzle-orm';
import { nextAccessRevision } from '../access/access-revision.ts';
import { noActor } from '../audit/actor.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { type Database, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, projectBranches } from '../database/schema.ts';
import { isAllowed, transition } from './branch-transition.ts';

/**
 * Expires the project's branches whose lifespan has ended (specification 3.1), with their audit events, in one batch
 * that also changes the access: applying it closes their logins and ends their sessions.
 * @returns when the next branch expires; null if none will
 */
export async function expireBranches(db: Database, projectId: string, now: Date): Promise<Date | null> {
  const due = and(eq(projectBranches.projectId, projectId), lte(projectBranches.expiresAt, now));
  const [dueRows, nextRows] = await db.batch([
    db
      .select()
      .from(projectBranches)
      .where(and(due, eq(projectBranches.status, 'active'))),
    nextExpiry(db, projectId, now),
  ]);
  if (dueRows.length > 0) {
    await inOneBatch(db, [
      ...dueRows.map(({ id, tenantId, branchName, expiresAt }) => {
        const metadata = { branch_name: branchName, expires_at: expiresAt?.toISOString() };
        const event = auditEvent(
          'branch.expired',
          noActor(tenantId),
          { projectId, branchId: id, metadata },
          now,
        );
        return insertIf(db, auditEvents, event, isAllowed('expire', and(due, eq(projectBranches.id, id))));
      }),
      nextAccessRevision(db, projectId, isAllowed('expire', due)),
      transition(db, 'expire', due, now),
    ]);
  }
  return nextRows[0]?.at ?? null;
}

const nextExpiry = (db: Database, projectId: string, now: Date) =>
  db
    .select({ at: min(projectBranches.expiresAt) })
    .from(projectBranches)
    .where(
      and(
        eq(projectBranches.projectId, projectId),
        eq(projectBranches.status, 'active'),
        gt(projectBranches.expiresAt, now),
      ),
    );
