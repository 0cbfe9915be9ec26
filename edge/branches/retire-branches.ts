import { and, eq } from 'drizzle-orm';
import { noActor } from '../audit/actor.ts';
import type { Database } from '../database/database.ts';
import { projectBranches, projects } from '../database/schema.ts';
import { newJob } from '../jobs/job-store.ts';
import { atTheirEnd } from './branch-ends.ts';
import { markBranchDeleted } from './delete-branch.ts';

/**
 * Deletes the project's branches that have been expired for `EXPIRED_RETENTION_SECONDS`: marks them and opens the jobs
 * that drop their databases. A branch that is revived at the same time stays.
 * @param beforeWriting called before the first job is written
 */
export async function retireBranches(
  db: Database,
  projectId: string,
  now: Date,
  beforeWriting: () => void,
): Promise<void> {
  const due = and(
    eq(projectBranches.projectId, projectId),
    eq(projectBranches.status, 'expired'),
    atTheirEnd(now),
  );
  const dueRows = await db
    .select({ branch: projectBranches, hostId: projects.hostId })
    .from(projectBranches)
    .innerJoin(projects, and(eq(projects.id, projectBranches.projectId), eq(projects.status, 'active')))
    .where(due);
  if (dueRows.length > 0) beforeWriting();
  for (const { branch, hostId } of dueRows) {
    const { id: branchId, tenantId, createdBy } = branch;
    const about = { id: crypto.randomUUID(), kind: 'branch.delete', projectId, branchId, hostId } as const;
    const job = newJob({ ...about, actor: noActor(tenantId), createdBy }, now);
    await markBranchDeleted(db, job, now, { event: 'retire', only: due });
  }
}
