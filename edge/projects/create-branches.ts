import type { Failure } from '../../shared/failures.ts';
import type { ProjectSizes } from '../../shared/measurement.ts';
import { fail, type Result } from '../../shared/result.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import { reserveBranches } from '../branches/reserve-branches.ts';
import type { JobRow } from '../jobs/job-store.ts';
import type { BranchRequest } from './coordinator-rpc.ts';
import type { CreationProgress } from './creation-progress.ts';
import type { CoordinatorParts, ProjectHistory } from './project-history.ts';
import { createOrReturn } from './run-creation.ts';

/** Reserves branches whose clones fit into the quota. */
export function reserveFitting(
  { db, settings, quota }: Pick<CoordinatorParts, 'db' | 'settings' | 'quota'>,
  request: BranchRequest,
  sizes: ProjectSizes['sizes'],
): Promise<Result<JobRow, Failure>> {
  const branchIds = request.branches.map(({ id }) => id);
  return quota.reserveWithinQuota({ ...request, projectId: request.project.id, branchIds }, sizes, () =>
    reserveBranches(db, settings(), request, new Date()),
  );
}

/** Creates branches whose clones fit into the quota, or responds with the one that has the name. */
export async function createBranches(
  {
    db,
    settings,
    monitor,
    quota,
    isLinked,
    armAlarm,
    running,
    history,
  }: CoordinatorParts & {
    history: ProjectHistory;
  },
  request: BranchRequest,
  waitMs: number,
): Promise<Result<CreationProgress, Failure>> {
  const { id: projectId, hostId } = request.project;
  if (!(await isLinked(hostId))) return fail({ code: 'HOST_UNAVAILABLE' });
  armAlarm(projectId);
  const reserve = async () => {
    const sized = await monitor.readSizes(projectId, hostId);
    if (!sized.ok) return sized;
    armAlarm(projectId);
    return reserveFitting({ db, settings, quota }, request, sized.value.sizes);
  };
  /** With the life of the request; its lease is still renewed. */
  const reset = async (branch: BranchRow, leftMs: number): Promise<Result<CreationProgress, Failure>> => {
    const { source, life, actor, keyUse, jobId } = request;
    if (branch.protected) return fail({ code: 'BRANCH_PROTECTED' });
    const about = { jobId, snapshotId: crypto.randomUUID(), branch, source, life, hostId };
    return history.resetBranch({ ...about, actor, keyUse, asCreation: true }, leftMs);
  };
  return createOrReturn({ ...running(hostId), db, reserve, reset }, request, waitMs);
}
