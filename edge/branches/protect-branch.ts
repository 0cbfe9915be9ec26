import { and, eq, inArray, ne, type SQL, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import type { Actor } from '../database/column-types.ts';
import { inActiveProject } from '../database/conditions.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { auditEvents, type BranchRow, projectBranches } from '../database/schema.ts';
import { ApiError } from '../errors.ts';

/**
 * Protects the branch, or ends its protection, if `condition` is true. The audit comes first: it is of a
 * change only.
 */
export function protectionStatements(
  db: Database,
  { id, projectId, branchName }: BranchRow,
  isProtected: boolean,
  actor: Actor,
  condition: SQL,
  now: Date,
) {
  const metadata = { branch_name: branchName, protected: isProtected };
  const event = auditEvent('branch.protection.changed', actor, { projectId, branchId: id, metadata }, now);
  const isChange = and(eq(projectBranches.id, id), ne(projectBranches.protected, isProtected));
  return {
    audit: insertIf(db, auditEvents, event, sql`${isThere(projectBranches, isChange)} and ${condition}`),
    update: db
      .update(projectBranches)
      .set({ protected: isProtected, updatedAt: now })
      .where(and(isChange, condition)),
  };
}

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
  const thisBranch = eq(projectBranches.id, branch.id);
  const isKept = and(thisBranch, inArray(projectBranches.status, ['creating', 'active', 'expired']));
  const statements = (isAllowed: SQL) => protectionStatements(db, branch, isProtected, actor, isAllowed, now);
  const written = await guardedWrite(db, {
    first: (isAllowed) => statements(isAllowed).update,
    require: [
      ...inActiveProject(branch.projectId, actor.tenantId),
      [isThere(projectBranches, isKept), 'BRANCH_NOT_ACTIVE'],
    ],
    rest: (isAllowed) => [statements(isAllowed).audit],
    returns: db.select().from(projectBranches).where(thisBranch),
  });
  return written.ok ? ok({ ...branch, ...written.value[0] }) : written;
}

/** @param confirm the name of the branch, as its users repeat it. @throws ApiError BRANCH_PROTECTED */
export function requireConfirmation(
  { protected: isProtected, branchName }: Pick<BranchRow, 'protected' | 'branchName'>,
  confirm: string | undefined,
): void {
  if (isProtected && confirm !== branchName) throw new ApiError('BRANCH_PROTECTED');
}
