import { and, eq, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { nextAccessRevision } from '../access/access-revision.ts';
import { insertKey } from '../api/idempotency-key.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { type Database, hasChanged, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, branchCredentials, projectBranches, projects } from '../database/schema.ts';
import type { Rotation } from '../projects/coordinator-rpc.ts';
import { makePassword, sealPassword } from './password.ts';
import type { SecretKey } from './seal.ts';

/**
 * Stores new passwords under a new access revision, in one batch. Applying the access puts them into effect and ends
 * the sessions of the old ones.
 */
export async function storeRotation(
  db: Database,
  keys: readonly SecretKey[],
  { projectId, branchId, roles, actor, keyUse }: Rotation,
  now: Date,
): Promise<Result<null, Failure>> {
  const active = sql`exists (select 1 from ${projectBranches} where ${and(
    eq(projectBranches.id, branchId),
    eq(projectBranches.projectId, projectId),
    eq(projectBranches.tenantId, actor.tenantId),
    eq(projectBranches.status, 'active'),
  )})`;
  const about = { projectId, branchId, metadata: { roles } };
  const event = auditEvent('branch.credentials.rotated', actor, about, now);
  const fresh = await Promise.all(
    roles.map(async (role) => ({ role, ...(await sealPassword(keys, branchId, role, makePassword())) })),
  );
  const changes = fresh.map(({ role, keyId, sealed }) =>
    db
      .update(branchCredentials)
      .set({
        keyId,
        sealedPassword: sealed,
        revision: sql`(select access_revision from ${projects} where id = ${projectId})`,
        updatedAt: now,
      })
      .where(and(eq(branchCredentials.branchId, branchId), eq(branchCredentials.role, role), active)),
  );
  const results = await inOneBatch(db, [
    // The key stores no passwords: a repeated request reads the current ones.
    ...insertKey(db, keyUse, event.id, active, now, { status: 200, body: {} }),
    nextAccessRevision(db, projectId, active),
    ...changes,
    insertIf(db, auditEvents, event, active),
  ]);
  return hasChanged(results.at(-1)) ? ok(null) : fail({ code: 'BRANCH_NOT_ACTIVE' });
}
