import { and, eq, inArray, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import type { Actor } from '../database/column-types.ts';
import { type Database, hasChanged, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, type BranchRow, projectBranches } from '../database/schema.ts';
import { ApiError } from '../errors.ts';

/** Protects the branch, or ends its protection, and audits the change. `main` is always protected. */
export async function storeProtection(
  db: Database,
  branch: BranchRow,
  isProtected: boolean,
  actor: Actor,
  now: Date,
): Promise<Result<BranchRow, Failure>> {
  if (branch.protected === isProtected) return ok(branch);
  if (branch.isDefault) return fail({ code: 'BRANCH_PROTECTED' });
  const changeable = and(
    eq(projectBranches.id, branch.id),
    eq(projectBranches.tenantId, actor.tenantId),
    eq(projectBranches.protected, !isProtected),
    inArray(projectBranches.status, ['creating', 'active', 'expired']),
  );
  const metadata = { branch_name: branch.branchName, protected: isProtected };
  const about = { projectId: branch.projectId, branchId: branch.id, metadata };
  const event = auditEvent('branch.protection.changed', actor, about, now);
  const change = { protected: isProtected, updatedAt: now };
  const results = await inOneBatch(db, [
    insertIf(db, auditEvents, event, sql`exists (select 1 from ${projectBranches} where ${changeable})`),
    db.update(projectBranches).set(change).where(changeable),
  ]);
  return hasChanged(results.at(-1)) ? ok({ ...branch, ...change }) : fail({ code: 'BRANCH_NOT_ACTIVE' });
}

/** @param confirm the name of the branch, as its users repeat it. @throws ApiError BRANCH_PROTECTED */
export function requireConfirmation(
  { protected: isProtected, branchName }: Pick<BranchRow, 'protected' | 'branchName'>,
  confirm: string | undefined,
): void {
  if (isProtected && confirm !== branchName) throw new ApiError('BRANCH_PROTECTED');
}
