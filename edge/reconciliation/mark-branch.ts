import { eq } from 'drizzle-orm';
import { closeWithProject } from '../access/access-revision.ts';
import { noActor } from '../audit/actor.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { isAllowed, transition } from '../branches/branch-transition.ts';
import { type Database, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, projectBranches } from '../database/schema.ts';
import { logEvent } from '../log.ts';
import type { RecordedBranch } from './differences.ts';

/** Records that the database of a branch is missing. */
export async function markLost(db: Database, branch: RecordedBranch, now: Date): Promise<void> {
  const thisBranch = eq(projectBranches.id, branch.id);
  await inOneBatch(db, [
    insertIf(db, auditEvents, eventOf('branch.lost', branch, now), isAllowed('lost', thisBranch)),
    transition(db, 'lost', thisBranch, now),
  ]);
  logEvent('reconcile.branch_lost', { branch_id: branch.id });
}

/** Records that the database of a lost branch is available again. */
export async function markFound(db: Database, branch: RecordedBranch, now: Date): Promise<void> {
  const thisBranch = eq(projectBranches.id, branch.id);
  await inOneBatch(db, [
    insertIf(db, auditEvents, eventOf('branch.found', branch, now), isAllowed('found', thisBranch)),
    closeWithProject(db, branch.projectId, isAllowed('found', thisBranch)),
    transition(db, 'found', thisBranch, now),
  ]);
  logEvent('reconcile.branch_found', { branch_id: branch.id });
}

const eventOf = (name: 'branch.lost' | 'branch.found', branch: RecordedBranch, now: Date) =>
  auditEvent(name, noActor(branch.tenantId), { projectId: branch.projectId, branchId: branch.id }, now);
