import { and, eq, gt, lte, min, type SQL, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { noActor } from '../audit/actor.ts';
import type { Database } from '../database/database.ts';
import { projectBranches, projects } from '../database/schema.ts';
import { newJob } from '../jobs/job-store.ts';
import type { LeaseRenewal } from '../projects/coordinator-rpc.ts';
import type { BranchRow } from './branch-resource.ts';
import { whereAllowed } from './branch-transition.ts';
import { markBranchDeleted } from './delete-branch.ts';

/** The end of a branch's lease that begins now, in an update of branches; null for a branch without a lease. */
export const leaseEnd = (now: Date): SQL<Date | null> => sql`${now.getTime()} + lease_seconds * 1000`;

/**
 * Lets the lease end later, or sooner, counted from now. It is not audited, because a client renews it every few
 * seconds. A lease that has ended is never renewed: its branch is about to be deleted.
 */
export async function storeRenewal(
  db: Database,
  { branch, leaseSeconds, actor }: LeaseRenewal,
  now: Date,
): Promise<Result<BranchRow, Failure>> {
  if (branch.leaseSeconds === null) return fail({ code: 'BRANCH_NOT_LEASED' });
  const [renewed] = await db
    .update(projectBranches)
    .set({
      leaseSeconds: leaseSeconds ?? undefined,
      leaseEndsAt: leaseSeconds === null ? leaseEnd(now) : new Date(now.getTime() + leaseSeconds * 1000),
      updatedAt: now,
    })
    .where(
      and(
        eq(projectBranches.id, branch.id),
        eq(projectBranches.tenantId, actor.tenantId),
        eq(projectBranches.status, 'active'),
        gt(projectBranches.leaseEndsAt, now),
      ),
    )
    .returning();
  if (renewed) return ok(renewed);
  const isOver = branch.leaseEndsAt !== null && branch.leaseEndsAt <= now;
  return fail({ code: isOver ? 'NOT_FOUND' : 'BRANCH_NOT_ACTIVE' });
}

/**
 * Deletes the project's branches whose leases have ended, as a client would: open jobs then drop their databases.
 * @returns when the next lease ends; null if none will
 */
export async function endLeases(db: Database, projectId: string, now: Date): Promise<Date | null> {
  const ofProject = eq(projectBranches.projectId, projectId);
  const due = lte(projectBranches.leaseEndsAt, now);
  const [branches, [next]] = await db.batch([
    db
      .select({
        branchId: projectBranches.id,
        tenantId: projectBranches.tenantId,
        createdBy: projectBranches.createdBy,
        hostId: projects.hostId,
      })
      .from(projectBranches)
      .innerJoin(projects, eq(projects.id, projectBranches.projectId))
      .where(whereAllowed('delete', and(ofProject, due))),
    db
      .select({ at: min(projectBranches.leaseEndsAt) })
      .from(projectBranches)
      .where(whereAllowed('delete', and(ofProject, gt(projectBranches.leaseEndsAt, now)))),
  ]);
  for (const { tenantId, ...branch } of branches) {
    const about = { ...branch, id: crypto.randomUUID(), projectId, actor: noActor(tenantId) };
    const job = newJob({ ...about, kind: 'branch.delete' }, now);
    // The branch stays if its lease was renewed in between.
    await markBranchDeleted(db, job, now, { onlyIf: due, reason: 'lease_ended' });
  }
  return next?.at ?? null;
}
