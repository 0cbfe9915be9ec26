import type { ProjectBlocks } from '../../shared/block.ts';
import type { Labels } from '../../shared/branch/labels.ts';
import type { Life } from '../../shared/branch/lifespan.ts';
import type { BranchRole } from '../../shared/branch/login.ts';
import type { Failure } from '../../shared/failures.ts';
import type { ProjectMeasurement, ProjectSizes } from '../../shared/measurement.ts';
import type { StorageState } from '../../shared/project/storage-quota.ts';
import type { Result } from '../../shared/result.ts';
import type { NetworkRuleRow } from '../access/network-rule-resource.ts';
import type { KeyUse } from '../api/idempotency-key.ts';
import type { Actor } from '../audit/actor.ts';
import type { Principal } from '../authentication/principal.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import type { JobRow } from '../jobs/job-store.ts';
import type { LastMeasurement } from '../monitoring/measurement-store.ts';
import type { Range } from '../monitoring/metric-history.ts';
import type { MetricName, MetricValue, Point } from '../monitoring/metrics.ts';
import type { CloneSource } from '../snapshots/clone-source.ts';
import type { CreationProgress } from './creation-progress.ts';
import type { ProjectHistoryRpc } from './project-history-rpc.ts';
import type { ProjectRow } from './project-resource.ts';

/** A validated request for a project. The caller makes the IDs, so a repeated request names the same project. */
export interface ProjectRequest {
  jobId: string;
  projectId: string;
  mainBranchId: string;
  name: string;
  /** Null if the request named none; the app key is then derived from the name. */
  requestedAppKey: string | null;
  env: string;
  storageQuotaGib: number;
  hostId: string;
  actor: Actor;
  keyUse: KeyUse | null;
}

/** What a client may choose for new branches. */
export interface BranchChoices {
  life: Life;
  /** Null: without a lease. */
  leaseSeconds: number | null;
  labels: Labels;
  /** Networks that get a rule of each branch, besides the creator's. */
  allow: readonly string[];
}

/**
 * A validated request for one branch or a batch of them. The caller makes the IDs, so a repeated request names the same
 * branches.
 */
export interface BranchRequest extends BranchChoices {
  jobId: string;
  kind: 'branch.create' | 'branch.create_batch';
  branches: readonly { id: string; name: string }[];
  project: ProjectRow;
  source: CloneSource;
  /** Network of the creator's address, if it is known. */
  creatorCidr: string | null;
  /** What happens if the project has a branch of the name; only for a single branch. */
  onExists: OnExists;
  actor: Actor;
  keyUse: KeyUse | null;
}

export type OnExists = 'fail' | 'return' | 'reset';

export interface ProjectDeletion {
  /** ID of the deletion job. */
  id: string;
  projectId: string;
  hostId: string;
  actor: Actor;
}

export interface BranchDeletion extends ProjectDeletion {
  branchId: string;
  /** The database is dropped immediately. */
  purge: boolean;
  confirm: string | undefined;
}

/** The job of a deletion; `restorableUntil` null: the database is dropped. */
export interface Deleted {
  job: JobRow;
  restorableUntil: Date | null;
}

export interface Rotation {
  projectId: string;
  branchId: string;
  /** The logins that get new passwords. */
  roles: readonly BranchRole[];
  hostId: string;
  actor: Actor;
  keyUse: KeyUse | null;
}

export interface LifespanChange {
  branch: BranchRow;
  life: Life;
  hostId: string;
  actor: Actor;
}

export interface LeaseRenewal {
  branch: BranchRow;
  /** Null: as long as before. */
  leaseSeconds: number | null;
  actor: Actor;
}

export interface RuleAddition {
  rule: NetworkRuleRow;
  hostId: string;
  actor: Actor;
  keyUse: KeyUse | null;
}

export interface RuleEnd {
  projectId: string;
  ruleId: string;
  hostId: string;
  actor: Actor;
  /** Null: the rule stays. */
  at: Date | 'now' | null;
}

/** `applied`: the change is already in effect on both ports. */
export interface RuleChange {
  applied: boolean;
}

/** Storage use of a project. */
export interface StorageStatus {
  hostId: string;
  /** Bytes of all active branches together. */
  used: number;
  state: StorageState;
}

/** The last measurement of a project. */
export interface Recorded {
  last: LastMeasurement | null;
  /** The next measurement is late. */
  overdue: boolean;
}

/** The measurements of one project, reached through its coordinator. */
export interface ProjectMonitorRpc extends Rpc.RpcTargetBranded {
  last(): Promise<Recorded>;
  /** @param reference the branch's ID, or its name at the last measurement */
  series(reference: string, range: Range): Promise<Recorded & { branchId: string; points: Point[] }>;
  /** The values of one metric of each branch that was measured last, with their times in Unix milliseconds. */
  metricOfBranches(
    metric: MetricName,
    range: Range,
  ): Promise<Recorded & { values: Map<string, MetricValue[]> }>;
  /** @param wanted `branchId` null: all branches; `since` null: start with the last measurement */
  stream(
    projectId: string,
    wanted: { branchId: string | null; seconds: number; since: number | null },
  ): Promise<Result<ReadableStream, Failure>>;
  /** @param hostId the host that sent the sizes */
  recordSizes(sizes: ProjectSizes, hostId?: string): Promise<void>;
  /** Evaluates the storage after a change of the quota. @returns null without a project or a measurement */
  evaluate(projectId: string): Promise<StorageStatus | null>;
}

/** A client that wants events. */
export interface EventClient {
  id: string;
  principal: Principal;
}

/** The events of one project, reached through its coordinator. */
export interface ProjectEventsRpc extends Rpc.RpcTargetBranded {
  /** @param wanted `after`: the last event that the client received; null: start with the next event */
  stream(
    projectId: string,
    client: EventClient,
    wanted: { seconds: number; after: number | null },
  ): Promise<Result<ReadableStream, Failure>>;
}

/** The Durable Object through which every change of one project's databases goes; named by the project's ID. */
export interface CoordinatorRpc extends Rpc.DurableObjectBranded {
  readonly monitor: ProjectMonitorRpc;
  readonly events: ProjectEventsRpc;
  readonly history: ProjectHistoryRpc;
  /** @param hostId the host that sent the measurement */
  recordMeasurement(measurement: ProjectMeasurement, hostId?: string): Promise<void>;
  /** Records the blocks of the project's branches. @param hostId the host that sent them */
  recordBlocks(blocks: ProjectBlocks, hostId?: string): Promise<void>;
  /** Creates a project and its `main` database. @param waitMs how long the client waits for the end */
  createProject(request: ProjectRequest, waitMs: number): Promise<Result<CreationProgress, Failure>>;
  /** Creates branches as clones of an active one. @param waitMs how long the client waits for the end */
  createBranches(request: BranchRequest, waitMs: number): Promise<Result<CreationProgress, Failure>>;
  /** Marks the branch as deleted and opens the job that drops its database. */
  deleteBranch(deletion: BranchDeletion): Promise<Result<Deleted, Failure>>;
  /** Marks the project as being deleted and opens the job that drops its databases. */
  deleteProject(deletion: ProjectDeletion): Promise<Result<JobRow, Failure>>;
  addRule(addition: RuleAddition): Promise<Result<RuleChange, Failure>>;
  /** Removes a rule, or lets it end later, sooner or never. */
  endRule(end: RuleEnd): Promise<Result<RuleChange, Failure>>;
  /** Sets new passwords. Fails also if they are stored and not yet in effect on the host. */
  rotateCredentials(rotation: Rotation): Promise<Result<null, Failure>>;
  /** Applies the stored access on the host. Fails if it is not in effect yet. */
  applyAccess(projectId: string, hostId: string): Promise<Result<null, Failure>>;
  /** Sets a new lifespan, counted from now; an expired branch becomes active again. */
  changeLifespan(change: LifespanChange): Promise<Result<BranchRow, Failure>>;
  /** Lets the lease of an active branch end later, or sooner, counted from now. */
  renewLease(renewal: LeaseRenewal): Promise<Result<BranchRow, Failure>>;
  /** Resumes open work: called when the project's host has linked, and by the reconciler. */
  wake(projectId: string): Promise<void>;
}
