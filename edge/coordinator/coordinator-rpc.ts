import type { ProjectBlocks } from '../../shared/block.ts';
import type { Failure } from '../../shared/failures.ts';
import type { ProjectMeasurement } from '../../shared/measurement.ts';
import type { FollowReport } from '../../shared/protocol/follow.ts';
import type { WorkProgress } from '../../shared/protocol/notifications.ts';
import type { Result } from '../../shared/result.ts';
import type { RuleAddition, RuleChange, RuleEdit } from '../access/change-rules.ts';
import type { Rotation } from '../access/credentials.ts';
import type { SettingsChange } from '../branches/branch-settings.ts';
import type { ComparisonRequest } from '../branches/comparison.ts';
import type { BranchRequest } from '../branches/create-branches.ts';
import type { BranchDeletion, Deleted } from '../branches/delete-branch.ts';
import type { SnapshotDeletion } from '../branches/drop-snapshots.ts';
import type { LeaseRenewal, LifespanChange } from '../branches/expiry.ts';
import type { RenameRequest } from '../branches/rename-branch.ts';
import type { ResetRequest } from '../branches/reset-branch.ts';
import type { RestoreRequest } from '../branches/restore-branch.ts';
import type { SnapshotRequest } from '../branches/take-snapshot.ts';
import type { TrialRequest } from '../branches/trial.ts';
import type { ApplyRequest, RehearseRequest } from '../changes/reserve.ts';
import type { ChangeRow } from '../database/change-schema.ts';
import type { BranchRow, JobRow } from '../database/schema.ts';
import type { ProjectEventsRpc } from '../events/project-events.ts';
import type { CreationProgress } from '../idempotency/idempotency-key.ts';
import type { Cancellation } from '../jobs/cancel-job.ts';
import type { Mail } from '../mail/mail.ts';
import type { ProjectMonitorRpc } from '../monitoring/project-monitor.ts';
import type { MoveRequest } from '../moves/reserve.ts';
import type { ProjectRequest } from '../projects/create-project.ts';
import type { ProjectDeletion } from '../projects/delete-project.ts';
import type { EndRequest } from '../sources/end.ts';
import type { StartRequest } from '../sources/start.ts';

/**
 * The Durable Object through which every change of one project's databases goes; named by the project's ID.
 */
export interface CoordinatorRpc extends Rpc.DurableObjectBranded {
  readonly monitor: ProjectMonitorRpc;
  readonly events: ProjectEventsRpc;
  /**
   * @param hostId the host that sent the measurement
   * @param kept the head of the project's measurements that its link has kept; left out: it keeps none
   * @returns the head that the link is to keep; null: without a change
   */
  recordMeasurement(
    measurement: ProjectMeasurement,
    hostId?: string,
    kept?: string | null,
  ): Promise<string | null>;
  /** Records the blocks of the project's branches. @param hostId the host that sent them */
  recordBlocks(blocks: ProjectBlocks, hostId?: string): Promise<void>;
  /** Creates a project and its `main` database. @param waitMs how long the client waits for the end */
  createProject(request: ProjectRequest, waitMs: number): Promise<Result<CreationProgress, Failure>>;
  /** Creates branches as clones of an active one. @param waitMs how long the client waits for the end */
  createBranches(request: BranchRequest, waitMs: number): Promise<Result<CreationProgress, Failure>>;
  resetBranch(request: ResetRequest, waitMs: number): Promise<Result<CreationProgress, Failure>>;
  /** Renames a branch and its database. A repeated request waits for the same job. */
  renameBranch(request: RenameRequest, waitMs: number): Promise<Result<CreationProgress, Failure>>;
  restoreBranch(request: RestoreRequest, waitMs: number): Promise<Result<CreationProgress, Failure>>;
  /** Waits until the snapshot is taken, at most `waitMs`. */
  takeSnapshot(request: SnapshotRequest, waitMs: number): Promise<Result<CreationProgress, Failure>>;
  /** Deletes the record, and opens the job that drops the database. */
  deleteSnapshot(deletion: SnapshotDeletion): Promise<Result<JobRow, Failure>>;
  /** Opens the job that tries a change on a clone of `main`. */
  rehearseChange(request: RehearseRequest): Promise<Result<JobRow, Failure>>;
  /** Opens the job that applies a change, or stores when it does: null. */
  applyChange(request: ApplyRequest): Promise<Result<JobRow | null, Failure>>;
  /** Opens the job that resets `main` to what it held before the change. */
  undoChange(change: ChangeRow, request: ResetRequest): Promise<Result<JobRow, Failure>>;
  /** Opens the job of the comparison, or returns the one that is open. */
  compareBranch(request: ComparisonRequest): Promise<Result<JobRow, Failure>>;
  /** Opens the job that waits for the report of a trial, which its host has begun. */
  awaitTrial(request: TrialRequest): Promise<Result<JobRow, Failure>>;
  /** Opens the job that copies a database elsewhere into `main`, which follows it then or does not. */
  startSource(request: StartRequest): Promise<Result<JobRow, Failure>>;
  /** Opens the job that ends following. @param writesStopped of a cut-over; null: without one */
  endFollowing(request: EndRequest, writesStopped: boolean | null): Promise<Result<JobRow, Failure>>;
  /** Has the open job of the kind undone. */
  cancelJob(cancellation: Cancellation): Promise<Result<JobRow, Failure>>;
  /** Records what the host reports of what the project follows. @param hostId the host that sent it */
  recordFollow(report: FollowReport, hostId: string): Promise<void>;
  /** Shows how much of a job's running step is done. */
  recordProgress(progress: WorkProgress): Promise<void>;
  /** Marks the branch as deleted and opens the job that drops its database. */
  deleteBranch(deletion: BranchDeletion): Promise<Result<Deleted, Failure>>;
  /** Marks the project as being deleted and opens the job that drops its databases. */
  deleteProject(deletion: ProjectDeletion): Promise<Result<JobRow, Failure>>;
  /** Opens the job that moves the project to another host. */
  moveProject(request: MoveRequest): Promise<Result<JobRow, Failure>>;
  addRule(addition: RuleAddition): Promise<Result<RuleChange, Failure>>;
  /** Removes a rule, or lets it end later, sooner or never. */
  changeRule(edit: RuleEdit): Promise<Result<RuleChange, Failure>>;
  /** Sets new passwords. Fails also if they are stored and not yet in effect on the host. */
  rotateCredentials(rotation: Rotation): Promise<Result<null, Failure>>;
  /** Applies the stored access on the host. Fails if it is not in effect yet. */
  applyAccess(): Promise<Result<null, Failure>>;
  /** Sets a new lifespan, counted from now; an expired branch becomes active again. */
  changeLifespan(change: LifespanChange): Promise<Result<BranchRow, Failure>>;
  /** Changes other settings of a branch. */
  changeSettings(change: SettingsChange): Promise<Result<BranchRow, Failure>>;
  /** Lets the lease of an active branch end later, or sooner, counted from now. */
  renewLease(renewal: LeaseRenewal): Promise<Result<BranchRow, Failure>>;
  /**
   * Sends mails, also if this object is lost meanwhile.
   * @param occasion what they are about: with the one of the last call that had one, nothing is sent
   */
  sendMails(mails: Mail[], occasion?: string): Promise<void>;
  /** Resumes open work: called when the project's host has linked, and by the reconciler. */
  wake(): Promise<void>;
}

/** The coordinators, by project ID. */
export interface Coordinators {
  PROJECT_COORDINATOR: DurableObjectNamespace<CoordinatorRpc>;
}

export const coordinatorOf = (env: Coordinators, projectId: string) =>
  env.PROJECT_COORDINATOR.get(env.PROJECT_COORDINATOR.idFromName(projectId));

/** Sends mails of a project, unless its last ones had the same occasion. */
export const mailsOf =
  (env: Coordinators) =>
  (projectId: string, mails: Mail[], occasion: string): Promise<void> =>
    coordinatorOf(env, projectId).sendMails(mails, occasion);
