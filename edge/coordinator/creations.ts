import type { Failure } from '../../shared/failures.ts';
import type { ProjectSizes } from '../../shared/measurement.ts';
import { fail, type Result } from '../../shared/result.ts';
import {
  type BranchRequest,
  existingBranch,
  reserveBranches,
  returnExisting,
} from '../branches/create-branches.ts';
import type { Database } from '../database/database.ts';
import type { BranchRow, JobRow } from '../database/schema.ts';
import type { CreationProgress } from '../idempotency/idempotency-key.ts';
import { type ProjectRequest, reserveProject } from '../projects/create-project.ts';
import type { ProjectHistory } from './project-history.ts';
import { awaitCreation, type CoordinatorParts, type Running, runCreation } from './run-job.ts';

/** Bounds the reservations of one request: another one may take the name in between each time. */
const TRIES = 5;
/** A creation that ended before it was waited for is noticed after this time. */
const READ_AGAIN_MS = 1_000;

interface Creating extends Running {
  db: Database;
  /** Writes the records of the request. */
  reserve: () => Promise<Result<JobRow, Failure>>;
  /** Resets the branch that has the name. */
  reset: (branch: BranchRow, leftMs: number) => Promise<Result<CreationProgress, Failure>>;
}

/**
 * Creates the branches, or responds with the one that has the name, as it is or reset (`on_exists`). Of
 * parallel requests for one name one creates the branch, and the others wait for it.
 */
async function createOrReturn(
  { db, reserve, reset, ...running }: Creating,
  request: BranchRequest,
  waitMs: number,
): Promise<Result<CreationProgress, Failure>> {
  const mayReturn = request.onExists !== 'fail';
  const deadline = Date.now() + waitMs;
  const left = () => Math.max(0, deadline - Date.now());
  for (let tries = 1; ; ) {
    const existing = mayReturn ? await existingBranch(db, request) : null;
    if (existing?.creation) {
      const end = await awaitCreation(running.runner, existing.creation, Math.min(left(), READ_AGAIN_MS));
      if (!end.ok || (!end.value.response && left() === 0)) return end;
      // Read again, because the branch of a batch, or of another source, is another response.
      continue;
    }
    if (existing && request.onExists === 'reset') return reset(existing.branch, left());
    if (existing) return returnExisting(existing.branch, request);
    const reserved = await reserve();
    if (reserved.ok) return runCreation(running, reserved.value, left());
    if (!mayReturn || reserved.failure.code !== 'BRANCH_EXISTS' || tries === TRIES) return reserved;
    tries += 1;
  }
}

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
  armAlarm();
  const reserve = async () => {
    const sized = await monitor.readSizes(projectId, hostId);
    if (!sized.ok) return sized;
    armAlarm();
    return reserveFitting({ db, settings, quota }, request, sized.value.sizes);
  };
  /** With the life of the request; its lease is still renewed. */
  const reset = async (branch: BranchRow, leftMs: number): Promise<Result<CreationProgress, Failure>> => {
    const { source, life, actor, keyUse, jobId } = request;
    if (branch.protected) return fail({ code: 'BRANCH_PROTECTED' });
    const about = { jobId, snapshotId: crypto.randomUUID(), branch, source, life, hostId };
    return history.resetBranch({ ...about, actor, keyUse, asCreation: true }, leftMs);
  };
  return createOrReturn({ ...running(), db, reserve, reset }, request, waitMs);
}

/** Creates a project with its `main`. Nothing is reserved while the host is not linked. */
export async function createProject(
  { db, settings, isLinked, armAlarm, running }: CoordinatorParts,
  request: ProjectRequest,
  waitMs: number,
): Promise<Result<CreationProgress, Failure>> {
  if (!(await isLinked(request.hostId))) return fail({ code: 'HOST_UNAVAILABLE' });
  armAlarm();
  const reserved = await reserveProject(db, settings(), request, new Date());
  return reserved.ok ? runCreation(running(), reserved.value, waitMs) : reserved;
}
