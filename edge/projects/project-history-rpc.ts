import type { Failure } from '../../shared/failures.ts';
import type { Result } from '../../shared/result.ts';
import type { Actor } from '../audit/actor.ts';
import type { ResetRequest } from '../branches/reset-branch.ts';
import type { RestoreRequest } from '../branches/restore-branch.ts';
import type { JobRow } from '../jobs/job-store.ts';
import type { SnapshotRow } from '../snapshots/snapshot-resource.ts';
import type { SnapshotRequest } from '../snapshots/take-snapshot.ts';
import type { CreationProgress } from './coordinator-rpc.ts';

export interface SnapshotDeletion {
  snapshot: SnapshotRow;
  hostId: string;
  actor: Actor;
}

/** Former states of one project's branches, reached through its coordinator. */
export interface ProjectHistoryRpc extends Rpc.RpcTargetBranded {
  /** Waits until the snapshot is taken, at most `waitMs`. */
  takeSnapshot(request: SnapshotRequest, waitMs: number): Promise<Result<CreationProgress, Failure>>;
  /** Deletes the record, and opens the job that drops the database. */
  deleteSnapshot(deletion: SnapshotDeletion): Promise<Result<JobRow, Failure>>;
  resetBranch(request: ResetRequest, waitMs: number): Promise<Result<CreationProgress, Failure>>;
  restoreBranch(request: RestoreRequest, waitMs: number): Promise<Result<CreationProgress, Failure>>;
}
