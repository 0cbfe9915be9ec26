import { and, eq } from 'drizzle-orm';
import { BRANCH_TRANSITIONS } from '../../shared/branch/branch-status.ts';
import { expiryOf, LIFESPAN_SECONDS, type Lifespan } from '../../shared/branch/lifespan.ts';
import { type AppContext, actorOf, databaseOf } from '../app-env.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { changesOf, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, projectBranches } from '../database/schema.ts';
import { ApiError } from '../errors.ts';
import { found, inProject } from '../projects/project-access.ts';
import type { BranchRow } from './branch-record.ts';
import { referencedBranch } from './branch-reference.ts';
import { isAllowed, whereAllowed } from './branch-transition.ts';

/**
 * Lets the branch live for `lifespan` from now on and records it, in one batch.
 * @throws ApiError NOT_FOUND, BRANCH_PROTECTED, BRANCH_NOT_ACTIVE
 */
export async function changeLifespan(
  c: AppContext,
  projectId: string,
  branchId: string,
  lifespan: Lifespan,
): Promise<BranchRow> {
  const [, branchRows] = await inProject(c, projectId, (db) => [referencedBranch(db, projectId, branchId)]);
  const branch = found(branchRows);
  if (branch.protected) throw new ApiError('BRANCH_PROTECTED');
  const db = databaseOf(c);
  const now = new Date();
  const change = {
    lifespan,
    expiresAt: expiryOf(lifespan, now),
    ttlSeconds: LIFESPAN_SECONDS[lifespan],
    status: BRANCH_TRANSITIONS.extend.to,
    updatedAt: now,
  };
  const thisBranch = and(
    eq(projectBranches.id, branchId),
    eq(projectBranches.tenantId, c.var.principal.tenantId),
  );
  const about = { projectId, branchId, metadata: { from: branch.lifespan, to: lifespan } };
  const event = auditEvent('branch.lifespan.changed', actorOf(c), about, now);
  const answers = await inOneBatch(db, [
    insertIf(db, auditEvents, event, isAllowed('extend', thisBranch)),
    db.update(projectBranches).set(change).where(whereAllowed('extend', thisBranch)),
  ]);
  if (changesOf(answers[1]) === 0) throw new ApiError('BRANCH_NOT_ACTIVE');
  return { ...branch, ...change };
}
