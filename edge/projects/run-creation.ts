import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import { existingBranch, returnExisting } from '../branches/existing-branch.ts';
import type { Database } from '../database/database.ts';
import type { JobRunner } from '../jobs/job-runner.ts';
import type { JobRow } from '../jobs/job-store.ts';
import type { BranchRequest } from './coordinator-rpc.ts';
import type { CreationProgress } from './creation-progress.ts';

/** Bounds the reservations of one request: another one may take the name in between each time. */
const TRIES = 5;
/** A creation that ended before it was waited for is noticed after this time. */
const READ_AGAIN_MS = 1_000;

/** What runs the jobs of a project. */
export interface Running {
  runner: JobRunner;
  waitUntil: (work: Promise<unknown>) => void;
}

/** Runs a creation and waits for its end, but no longer than its client waits. */
export function runCreation(
  { runner, waitUntil }: Running,
  job: JobRow,
  waitMs: number,
): Promise<Result<CreationProgress, Failure>> {
  waitUntil(runner.start(job));
  return awaitCreation(runner, job.id, waitMs);
}

async function awaitCreation(
  runner: JobRunner,
  jobId: string,
  waitMs: number,
): Promise<Result<CreationProgress, Failure>> {
  const end = await runner.endOf(jobId, waitMs);
  if (end && !end.ok) return end;
  if (end && !end.value) throw new Error(`job ${jobId} ended without a response`);
  return ok(end?.value ? { response: end.value } : { response: null, jobId });
}

interface Creating extends Running {
  db: Database;
  /** Writes the records of the request. */
  reserve: () => Promise<Result<JobRow, Failure>>;
  /** Resets the branch that has the name. */
  reset: (branch: BranchRow, leftMs: number) => Promise<Result<CreationProgress, Failure>>;
}

/**
 * Creates the branches, or responds with the one that has the name, as it is or reset (`on_exists`). Of parallel requests for one name one
 * creates the branch, and the others wait for it.
 */
export async function createOrReturn(
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
