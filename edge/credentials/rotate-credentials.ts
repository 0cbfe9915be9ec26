import { and, eq, sql } from 'drizzle-orm';
import type { BranchRole } from '../../shared/branch/login.ts';
import type { Failure } from '../../shared/failures.ts';
import { nextAccessRevision } from '../access/access-revision.ts';
import { insertKey, type KeyUse } from '../api/idempotency-key.ts';
import type { Actor } from '../audit/actor.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { changesOf, type Database, inOneBatch, insertIf, uniqueConflict } from '../database/database.ts';
import { auditEvents, branchCredentials, projectBranches, projects } from '../database/schema.ts';
import { makePassword, sealPassword } from './password.ts';
import type { SecretKey } from './seal.ts';

/** Logins that get new passwords; the read-only one keeps its own. */
const ROTATED: readonly BranchRole[] = ['owner', 'read_write'];

export interface Rotation {
  projectId: string;
  branchId: string;
  hostId: string;
  actor: Actor;
  keyUse: KeyUse | null;
}

/**
 * Records new passwords under a new access revision, in one batch; applying the access makes them work and ends
 * the sessions of the old ones.
 * @returns why not, or null
 */
export async function storeRotation(
  db: Database,
  keys: readonly SecretKey[],
  { projectId, branchId, actor, keyUse }: Rotation,
  now: Date,
): Promise<Failure | null> {
  const active = sql`exists (select 1 from ${projectBranches} where ${and(
    eq(projectBranches.id, branchId),
    eq(projectBranches.projectId, projectId),
    eq(projectBranches.tenantId, actor.tenantId),
    eq(projectBranches.status, 'active'),
  )})`;
  const about = { projectId, branchId, metadata: { roles: ROTATED } };
  const event = auditEvent('branch.credentials.rotated', actor, about, now);
  const fresh = await Promise.all(
    ROTATED.map(async (role) => ({ role, ...(await sealPassword(keys, branchId, role, makePassword())) })),
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
  try {
    const answers = await inOneBatch(db, [
      // Passwords are not kept with the key: who comes again reads the ones of that time.
      ...insertKey(db, keyUse, event.id, active, now, { status: 200, body: {} }),
      nextAccessRevision(db, projectId, active),
      ...changes,
      insertIf(db, auditEvents, event, active),
    ]);
    return changesOf(answers.at(-1)) === 1 ? null : { code: 'BRANCH_NOT_ACTIVE' };
  } catch (error) {
    if (uniqueConflict(error)) return { code: 'IDEMPOTENCY_IN_FLIGHT' };
    throw error;
  }
}
