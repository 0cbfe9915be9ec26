import { and, eq, sql } from 'drizzle-orm';
import type { Params } from '../../shared/protocol/operations.ts';
import { type Database, isOneOf } from '../database/database.ts';
import { jobs } from '../database/schema.ts';
import { branchIdsOf, isOpenJob } from '../jobs/job-store.ts';
import { logEvent } from '../log.ts';
import type { Differences, HostedBranch } from './differences.ts';

const ADVICE =
  'No job refers to it, so it is not dropped: the records may have been restored from an older backup. ' +
  'See docs/decisions/0023-records-that-went-back.md.';

const logUntraced = (hostId: string, found: Record<string, string>) =>
  logEvent('reconcile.stranger', { host_id: hostId, ...found, advice: ADVICE });

/**
 * The orphans that can be dropped, because a job created them; jobs are never deleted. The others may be user data
 * that is missing from the records, so they are only logged, at each reconciliation.
 */
export async function leftoversAmong(
  db: Database,
  hostId: string,
  { orphans, orphanedProjects }: Pick<Differences, 'orphans' | 'orphanedProjects'>,
): Promise<{ branches: HostedBranch[]; projectIds: string[] }> {
  const projectIds = [...orphanedProjects, ...orphans.map(({ project_id }) => project_id)];
  if (projectIds.length === 0) return { branches: [], projectIds: [] };
  const traces = await db
    .select({ projectId: jobs.projectId, branchId: jobs.branchId, input: jobs.input })
    .from(jobs)
    .where(isOneOf(jobs.projectId, projectIds));
  const traced = new Set(traces.flatMap((job) => [job.projectId, ...branchIdsOf(job)]));

  const untraced = [
    ...orphans
      .filter(({ branch_id }) => !traced.has(branch_id))
      .map(({ project_id, branch_id, database }) => ({ project_id, branch_id, database })),
    ...orphanedProjects.filter((id) => !traced.has(id)).map((project_id) => ({ project_id })),
  ];
  for (const orphan of untraced) logUntraced(hostId, orphan);
  return {
    branches: orphans.filter(({ branch_id }) => traced.has(branch_id)),
    projectIds: orphanedProjects.filter((id) => traced.has(id)),
  };
}

/**
 * The resets whose clones can be dropped, because their jobs have ended; an ended job does not run again.
 * @param jobIds read from the host before
 */
export async function endedResets(
  db: Database,
  hostId: string,
  jobIds: string[],
): Promise<Params<'reset.cancel'>[]> {
  if (jobIds.length === 0) return [];
  const found = await db
    .select({
      job_id: jobs.id,
      project_id: jobs.projectId,
      branch_id: sql<string>`${jobs.branchId}`,
      snapshot_id: sql<string>`json_extract(${jobs.input}, '$.snapshotId')`,
      isOpen: sql<boolean>`${isOpenJob}`.mapWith(Boolean),
    })
    .from(jobs)
    .where(and(isOneOf(jobs.id, jobIds), eq(jobs.kind, 'branch.reset')));
  const known = new Set(found.map(({ job_id }) => job_id));
  for (const job_id of jobIds.filter((id) => !known.has(id))) logUntraced(hostId, { job_id });
  return found.filter(({ isOpen }) => !isOpen).map(({ isOpen: _, ...reset }) => reset);
}
