import type { Life } from '../../shared/branch/lifespan.ts';
import type { Failure } from '../../shared/failures.ts';
import type { WorkProgress } from '../../shared/protocol/notifications.ts';
import type { Result } from '../../shared/result.ts';
import type { KeyUse } from '../api/idempotency-key.ts';
import type { Actor, AuditActor } from '../audit/actor.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import type { Comparison } from '../jobs/job-input.ts';
import type { JobRow } from '../jobs/job-store.ts';
import type { CloneSource } from '../snapshots/clone-source.ts';
import type { SnapshotRow } from '../snapshots/snapshot-resource.ts';
import type { CreationProgress } from './creation-progress.ts';
import type { ProjectRow } from './project-resource.ts';

/** A validated request for a snapshot, or one by the project's schedule. */
export interface SnapshotRequest {
  jobId: string;
  snapshotId: string;
  branch: BranchRow;
  name: string | null;
  kind: 'manual' | 'schedule';
  ttlSeconds: number | null;
  /** Of a schedule: the snapshot before. */
  unlessSameAs?: string;
  hostId: string;
  actor: AuditActor;
  createdBy: string;
  keyUse: KeyUse | null;
}

/** A validated request to give a branch the content of its source. */
export interface ResetRequest {
  jobId: string;
  /** The snapshot that the present state becomes. */
  snapshotId: string;
  branch: BranchRow;
  source: CloneSource;
  /** Null: as before. */
  life: Life | null;
  hostId: string;
  actor: Actor;
  keyUse: KeyUse | null;
  /** The response has the form of a creation that found the branch (`on_exists`). */
  asCreation: boolean;
}

/** A validated request to bring a deleted branch back. */
export interface RestoreRequest {
  jobId: string;
  project: ProjectRow;
  branch: BranchRow;
  /** Its kept database. */
  snapshot: SnapshotRow;
  branchName: string;
  actor: Actor;
  keyUse: KeyUse | null;
}

/** A validated request for a comparison that takes long. */
export interface ComparisonRequest {
  jobId: string;
  branch: BranchRow;
  comparison: Comparison;
  hostId: string;
  actor: Actor;
}

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
  /** Opens the job of the comparison, or returns the one that is open. */
  compareBranch(request: ComparisonRequest): Promise<Result<JobRow, Failure>>;
  /** Shows how much of a job's running step is done. @param hostId the host that does the work */
  recordProgress(progress: WorkProgress, hostId: string): Promise<void>;
}
