import type { Actor } from '../audit/actor.ts';
import { auditEvent } from '../audit/audit-event.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { auditEvents, projectBranches } from '../database/schema.ts';
import { isOfTenant } from '../tenancy/is-of-tenant.ts';
import type { CredentialsView } from './branch-credentials.ts';

/**
 * Records that the branch's credentials are shown. Changes nothing if the branch has moved to another tenant since it
 * was read: its events moved as well (specification 5.9), and the former tenant must not see the credentials.
 */
export function auditedView(
  db: Database,
  { id: branchId, projectId }: BranchRow,
  role: CredentialsView,
  actor: Actor,
  now: Date,
): Statement {
  const event = auditEvent(
    'branch.credentials.viewed',
    actor,
    { projectId, branchId, metadata: { role } },
    now,
  );
  return insertIf(db, auditEvents, event, isOfTenant(projectBranches, branchId, actor.tenantId));
}
