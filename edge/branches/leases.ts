import { and, eq, gt, type SQL, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { Database } from '../database/database.ts';
import { projectBranches } from '../database/schema.ts';
import type { LeaseRenewal } from '../projects/coordinator-rpc.ts';
import type { BranchRow } from './branch-resource.ts';

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
