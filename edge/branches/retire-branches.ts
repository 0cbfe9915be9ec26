import { and, eq, type SQL } from 'drizzle-orm';
import { noActor } from '../audit/actor.ts';
import type { Database } from '../database/database.ts';
import { projectBranches, projects } from '../database/schema.ts';
import { newJob } from '../jobs/job-store.ts';
import { atTheirEnd, atTheirLeasesEnd } from './branch-ends.ts';
import { whereAllowed } from './branch-transition.ts';
import { markBranchDeleted, type ServiceDeletion } from './delete-branch.ts';

const REASONS: readonly (Omit<ServiceDeletion, 'due'> & { due: (now: Date) => SQL })[] = [
  { reason: 'lease_ended', event: 'delete', due: atTheirLeasesEnd },
  { reason: 'expired', event: 'retire', due: atTheirEnd },
];

/**
 * Deletes the project's branches whose leases have ended, and those that have been expired for
 * `EXPIRED_RETENTION_SECONDS`: marks them and opens the jobs that drop their databases. A branch whose lease is renewed,
 * or that is revived, at the same time stays.
 * @param beforeWriting called before the first job of each reason is written
 */
export async function retireBranches(
  db: Database,
  projectId: string,
  now: Date,
  beforeWriting: () => void,
): Promise<void> {
  for (const { reason, event, due } of REASONS) {
    const deletion = { reason, event, due: due(now) };
    const dueRows = await db
      .select({ branch: projectBranches, hostId: projects.hostId })
      .from(projectBranches)
      .innerJoin(projects, and(eq(projects.id, projectBranches.projectId), eq(projects.status, 'active')))
      .where(whereAllowed(event, and(eq(projectBranches.projectId, projectId), deletion.due)));
    if (dueRows.length > 0) beforeWriting();
    for (const { branch, hostId } of dueRows) {
      const { id: branchId, tenantId, createdBy } = branch;
      const about = { id: crypto.randomUUID(), kind: 'branch.delete', projectId, branchId, hostId } as const;
      const job = newJob({ ...about, actor: noActor(tenantId), createdBy }, now);
      await markBranchDeleted(db, job, now, { service: deletion });
    }
  }
}
