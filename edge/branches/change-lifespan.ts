import { and, eq, or, sql } from 'drizzle-orm';
import { BRANCH_TRANSITIONS } from '../../shared/branch/branch-status.ts';
import { expiryOf } from '../../shared/branch/lifespan.ts';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { nextAccessRevision } from '../access/access-revision.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { type Database, hasChanged, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, projectBranches, projects } from '../database/schema.ts';
import type { LifespanChange } from '../projects/coordinator-rpc.ts';
import type { Settings } from '../settings.ts';
import { branchLimitOf, branchLimitReached, hasSlots } from './branch-limit.ts';
import type { BranchRow } from './branch-resource.ts';
import { isAllowed, whereAllowed } from './branch-transition.ts';

/**
 * Sets the lifespan, counted from now, and records the change, in one batch. An expired branch becomes active again if
 * the project has a slot for it, which changes the access.
 */
export async function storeLifespan(
  db: Database,
  settings: Settings,
  { branch, life, actor }: LifespanChange,
  now: Date,
): Promise<Result<BranchRow, Failure>> {
  if (branch.protected) return fail({ code: 'BRANCH_PROTECTED' });
  const { id: branchId, projectId } = branch;
  const change = {
    ...life,
    expiresAt: expiryOf(life, now),
    status: BRANCH_TRANSITIONS.extend.to,
    deletesAt: null,
    updatedAt: now,
  };
  const thisBranch = and(eq(projectBranches.id, branchId), eq(projectBranches.tenantId, actor.tenantId));
  const expired = sql`exists (select 1 from ${projectBranches} where ${and(thisBranch, eq(projectBranches.status, 'expired'))})`;
  // An active branch has its slot already.
  const limit = branchLimitOf(branch, settings);
  const hasSlot = sql`exists (select 1 from ${projects} where id = ${projectId} and ${hasSlots(limit, 1)})`;
  const extendable = and(thisBranch, or(eq(projectBranches.status, 'active'), hasSlot));
  const metadata = { from: branch.lifespan, to: life.lifespan, ttl_seconds: life.ttlSeconds };
  const about = { projectId, branchId, metadata };
  const event = auditEvent('branch.lifespan.changed', actor, about, now);
  const results = await inOneBatch(db, [
    insertIf(db, auditEvents, event, isAllowed('extend', extendable)),
    nextAccessRevision(db, projectId, and(expired, isAllowed('extend', extendable)) ?? expired),
    db
      .select({
        limit: limit.limit,
        current: limit.current,
        isExtendable: sql<number>`${isAllowed('extend', thisBranch)}`,
      })
      .from(projects)
      .where(eq(projects.id, projectId)),
    db.update(projectBranches).set(change).where(whereAllowed('extend', extendable)),
  ]);
  if (!hasChanged(results.at(-1))) {
    const [count] = results.at(-2) as { limit: number; current: number; isExtendable: number }[];
    return fail(count?.isExtendable ? branchLimitReached(limit, count) : { code: 'BRANCH_NOT_ACTIVE' });
  }
  return ok({ ...branch, ...change });
}
