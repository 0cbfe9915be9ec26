import { and, eq, sql } from 'drizzle-orm';
import { BRANCH_TRANSITIONS } from '../../shared/branch/branch-status.ts';
import { expiryOf, LIFESPAN_SECONDS } from '../../shared/branch/lifespan.ts';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { nextAccessRevision } from '../access/access-revision.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { type Database, hasChanged, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, projectBranches } from '../database/schema.ts';
import type { LifespanChange } from '../projects/coordinator-rpc.ts';
import type { BranchRow } from './branch-resource.ts';
import { isAllowed, whereAllowed } from './branch-transition.ts';

/**
 * Sets the lifespan, counted from now, and records the change, in one batch. An expired branch becomes active again,
 * which changes the access.
 */
export async function storeLifespan(
  db: Database,
  { branch, lifespan, actor }: LifespanChange,
  now: Date,
): Promise<Result<BranchRow, Failure>> {
  if (branch.protected) return fail({ code: 'BRANCH_PROTECTED' });
  const { id: branchId, projectId } = branch;
  const change = {
    lifespan,
    expiresAt: expiryOf(lifespan, now),
    ttlSeconds: LIFESPAN_SECONDS[lifespan],
    status: BRANCH_TRANSITIONS.extend.to,
    updatedAt: now,
  };
  const thisBranch = and(eq(projectBranches.id, branchId), eq(projectBranches.tenantId, actor.tenantId));
  const expired = sql`exists (select 1 from ${projectBranches} where ${and(thisBranch, eq(projectBranches.status, 'expired'))})`;
  const about = { projectId, branchId, metadata: { from: branch.lifespan, to: lifespan } };
  const event = auditEvent('branch.lifespan.changed', actor, about, now);
  const results = await inOneBatch(db, [
    insertIf(db, auditEvents, event, isAllowed('extend', thisBranch)),
    nextAccessRevision(db, projectId, expired),
    db.update(projectBranches).set(change).where(whereAllowed('extend', thisBranch)),
  ]);
  if (!hasChanged(results.at(-1))) return fail({ code: 'BRANCH_NOT_ACTIVE' });
  return ok({ ...branch, ...change });
}
