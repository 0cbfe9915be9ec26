import { RpcTarget } from 'cloudflare:workers';
import { eq } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import type { ProjectSizes } from '../../shared/measurement.ts';
import type { WorkProgress } from '../../shared/protocol/notifications.ts';
import { fail, type Result } from '../../shared/result.ts';
import { ofSnapshot } from '../branches/clone-source.ts';
import { type ComparisonRequest, reserveComparison } from '../branches/comparison.ts';
import { deleteSnapshot, dropJob, type SnapshotDeletion } from '../branches/drop-snapshots.ts';
import { type ResetRequest, reserveReset } from '../branches/reset-branch.ts';
import { type RestoreRequest, reserveRestore } from '../branches/restore-branch.ts';
import { reserveSnapshot, type SnapshotRequest } from '../branches/take-snapshot.ts';
import { type BranchRow, type JobRow, snapshots } from '../database/schema.ts';
import type { CreationProgress } from '../idempotency/idempotency-key.ts';
import { readIsChanging } from '../jobs/job-store.ts';
import type { ProjectHistoryRpc } from './coordinator-rpc.ts';
import { type CoordinatorParts, runCreation } from './run-job.ts';

/**
 * How long a reset or a restoration waits for the ends of the branch's open jobs, and how often it polls
 * them.
 */
const IDLE_WITHIN_MS = 5_000;
const IDLE_POLL_MS = 100;

/** Snapshots of a project's branches, and what goes back to them. */
export class ProjectHistory extends RpcTarget implements ProjectHistoryRpc {
  readonly #options: CoordinatorParts;

  constructor(options: CoordinatorParts) {
    super();
    this.#options = options;
  }

  takeSnapshot(request: SnapshotRequest, waitMs: number): Promise<Result<CreationProgress, Failure>> {
    const { db, settings } = this.#options;
    return this.#run(request.hostId, waitMs, () => reserveSnapshot(db, settings(), request, new Date()));
  }

  async deleteSnapshot({ snapshot, hostId, actor }: SnapshotDeletion): Promise<Result<JobRow, Failure>> {
    const { db, armAlarm, running } = this.#options;
    armAlarm();
    const now = new Date();
    const about = { hostId, actor, createdBy: actor.userId };
    const deleted = await deleteSnapshot(db, snapshot, dropJob(snapshot, about, now), now);
    const { runner, waitUntil } = running();
    if (deleted.ok) waitUntil(runner.start(deleted.value));
    return deleted;
  }

  resetBranch(request: ResetRequest, waitMs: number): Promise<Result<CreationProgress, Failure>> {
    const { db, quota } = this.#options;
    const { branch, source, hostId, keyUse } = request;
    const { id, projectId } = branch;
    const admission = { projectId, keyUse, source, branchIds: [id], replaced: id };
    return this.#run(hostId, waitMs, () =>
      this.#reserveIdle(branch, hostId, (sizes) =>
        quota.reserveWithinQuota(admission, sizes, () => reserveReset(db, request, new Date())),
      ),
    );
  }

  restoreBranch(request: RestoreRequest, waitMs: number): Promise<Result<CreationProgress, Failure>> {
    const { db, settings, quota } = this.#options;
    const { project, branch, snapshot, keyUse } = request;
    return this.#run(project.hostId, waitMs, () =>
      this.#reserveIdle(branch, project.hostId, async (sizes) => {
        const [kept] = await db.select().from(snapshots).where(eq(snapshots.id, snapshot.id));
        // Its size is known once the job of the deletion has kept the database.
        if (kept?.status === 'making') return fail({ code: 'HOST_BUSY' });
        const source = ofSnapshot(kept ?? snapshot, false);
        const admission = { projectId: project.id, keyUse, source, branchIds: [branch.id] };
        return quota.reserveWithinQuota(admission, sizes, () =>
          reserveRestore(db, settings(), request, new Date()),
        );
      }),
    );
  }

  async compareBranch(request: ComparisonRequest): Promise<Result<JobRow, Failure>> {
    const { db, armAlarm, running } = this.#options;
    armAlarm();
    const reserved = await reserveComparison(db, request, new Date());
    const { runner, waitUntil } = running();
    if (reserved.ok) waitUntil(runner.start(reserved.value));
    return reserved;
  }

  async recordProgress({ job_id, percent }: WorkProgress): Promise<void> {
    this.#options.running().runner.report(job_id, percent);
  }

  /**
   * Makes a reservation that is refused with HOST_BUSY while a job of the branch is open: waits some seconds
   * for its end.
   * @param reserve gets sizes that the host has just read
   */
  async #reserveIdle(
    { id, projectId }: BranchRow,
    hostId: string,
    reserve: (sizes: ProjectSizes['sizes']) => Promise<Result<JobRow, Failure>>,
  ): Promise<Result<JobRow, Failure>> {
    const { db, monitor, armAlarm } = this.#options;
    const deadline = Date.now() + IDLE_WITHIN_MS;
    for (;;) {
      const sized = await monitor.readSizes(projectId, hostId);
      if (!sized.ok) return sized;
      armAlarm();
      const reserved = await reserve(sized.value.sizes);
      if (reserved.ok || reserved.failure.code !== 'HOST_BUSY') return reserved;
      do {
        if (Date.now() >= deadline) return reserved;
        await new Promise((resolve) => setTimeout(resolve, IDLE_POLL_MS));
      } while (await readIsChanging(db, id));
    }
  }

  /**
   * Runs the job of a reservation, and waits for its end as long as the client does.
   * @param waitMs includes the time that the reservation takes
   */
  async #run(
    hostId: string,
    waitMs: number,
    reserve: () => Promise<Result<JobRow, Failure>>,
  ): Promise<Result<CreationProgress, Failure>> {
    const { isLinked, armAlarm, running, changed } = this.#options;
    const deadline = Date.now() + waitMs;
    if (!(await isLinked(hostId))) return fail({ code: 'HOST_UNAVAILABLE' });
    armAlarm();
    const reserved = await reserve();
    if (!reserved.ok) return reserved;
    const outcome = await runCreation(running(), reserved.value, Math.max(0, deadline - Date.now()));
    changed();
    return outcome;
  }
}
