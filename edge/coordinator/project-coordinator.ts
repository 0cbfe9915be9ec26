import { DurableObject } from 'cloudflare:workers';
import { eq } from 'drizzle-orm';
import type { ProjectBlocks } from '../../shared/block.ts';
import type { Failure } from '../../shared/failures.ts';
import type { ProjectMeasurement, ProjectSizes } from '../../shared/measurement.ts';
import type { FollowReport } from '../../shared/protocol/follow.ts';
import type { WorkProgress } from '../../shared/protocol/notifications.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import {
  deleteRule,
  insertRule,
  type RuleAddition,
  type RuleChange,
  type RuleEdit,
  ruleResponse,
  storeRuleChange,
} from '../access/change-rules.ts';
import { type Rotation, storeRotation } from '../access/credentials.ts';
import { sendAccess } from '../access/send-access.ts';
import { checkResetTo } from '../branches/branch.ts';
import { type SettingsChange, storeSettings } from '../branches/branch-settings.ts';
import type { CloneSource } from '../branches/clone-source.ts';
import { type ComparisonRequest, reserveComparison } from '../branches/comparison.ts';
import {
  type BranchRequest,
  existingBranch,
  reserveBranches,
  returnExisting,
} from '../branches/create-branches.ts';
import { type BranchDeletion, type Deleted, deleteBranch } from '../branches/delete-branch.ts';
import { deleteSnapshot, dropJob, type SnapshotDeletion } from '../branches/drop-snapshots.ts';
import { type LeaseRenewal, type LifespanChange, storeLifespan, storeRenewal } from '../branches/expiry.ts';
import {
  alreadyRenamed,
  type RenameRequest,
  renameResponse,
  reserveRename,
} from '../branches/rename-branch.ts';
import { type ResetRequest, reserveReset, type UndoneChange } from '../branches/reset-branch.ts';
import { keptSource, type RestoreRequest, reserveRestore } from '../branches/restore-branch.ts';
import { shareSource } from '../branches/shared-snapshot.ts';
import { reserveSnapshot, type SnapshotRequest } from '../branches/take-snapshot.ts';
import { reserveTrial, type TrialRequest } from '../branches/trial.ts';
import {
  type ApplyRequest,
  type RehearseRequest,
  reserveApplication,
  reserveRehearsal,
  schedule,
} from '../changes/reserve.ts';
import { undoOf } from '../changes/undo.ts';
import type { ChangeRow } from '../database/change-schema.ts';
import { type Database, type DatabaseBinding, openDatabase } from '../database/database.ts';
import { type BranchRow, type JobRow, projectBranches, projects } from '../database/schema.ts';
import { ProjectEvents } from '../events/project-events.ts';
import { type HostLinks, hostCaller, hostLink, isLinked } from '../hosts/host-client.ts';
import { type CreationProgress, storeResponse } from '../idempotency/idempotency-key.ts';
import { CANCELLABLE_KINDS, type Cancellation, storeCancellation } from '../jobs/cancel-job.ts';
import { JobRunner } from '../jobs/job-runner.ts';
import { becomesIdle, newJob, openJobs } from '../jobs/job-store.ts';
import { jobError, publicFailure } from '../jobs/saga.ts';
import { Turns } from '../jobs/turns.ts';
import type { Mail } from '../mail/mail.ts';
import { Outbox } from '../mail/outbox.ts';
import { BlockRecorder } from '../monitoring/blocks.ts';
import { MeasurementStore } from '../monitoring/measurements.ts';
import { ProjectMonitor } from '../monitoring/project-monitor.ts';
import { StorageQuota } from '../monitoring/storage-quota.ts';
import { type MoveRequest, reserveMove } from '../moves/reserve.ts';
import { objectName } from '../object-name.ts';
import { type ProjectRequest, reserveProject } from '../projects/create-project.ts';
import { markProjectDeleting, type ProjectDeletion } from '../projects/delete-project.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { enforce, type Limiters } from '../rate-limits/limiter-client.ts';
import { readSettings } from '../settings.ts';
import { type EndRequest, reserveEnd } from '../sources/end.ts';
import { recordObservation } from '../sources/record.ts';
import { reserveStart, type StartRequest } from '../sources/start.ts';
import { type WebhookSenders, webhookSenderOf } from '../webhooks/webhook.ts';
import { EarliestAlarm, Retries } from './alarm.ts';
import type { CoordinatorRpc } from './coordinator-rpc.ts';
import { endLives } from './end-lives.ts';
import { SAGAS } from './sagas.ts';

/**
 * Interval of the checks while jobs are open; shorter than any life or lease, whose end the last check
 * schedules.
 */
const CHECK_AFTER_MS = 20_000;

/** Bounds the reservations of one request: another one may take the name in between each time. */
const TRIES = 5;
/** A creation that ended before it was waited for is noticed after this time. */
const READ_AGAIN_MS = 1_000;
/** How long a reset or a restoration waits for the ends of the branch's open jobs. */
const IDLE_WITHIN_MS = 5_000;

/** How long the end of a move is waited for here, to begin the next one of a drain. */
const DRAIN_WITHIN_MS = 600_000;

/** How often work that was cancelled is stopped on the host, until its job has ended. */
const STOP_EVERY_MS = 1_000;
const STOP_TRIES = 60;

/** Storage key of what the last mails were about that are sent once. */
const MAILED_OCCASION = 'mailed_occasion';

const until = (deadline: number) => Math.max(0, deadline - Date.now());
const isBusy = (outcome: Result<unknown, Failure>) => !outcome.ok && outcome.failure.code === 'HOST_BUSY';

type CoordinatorEnv = DatabaseBinding & HostLinks & Limiters & WebhookSenders;

/**
 * One object per project (`idFromName(project ID)`): every change of the project's databases goes through it.
 * Its storage holds an alarm and the measurements. Jobs, records and rules are in D1, and the alarm is set
 * before a job is written, so that after any crash the job is found and finished.
 */
export class ProjectCoordinator extends DurableObject<CoordinatorEnv> implements CoordinatorRpc {
  readonly #projectId = objectName(this.ctx, 'project_id');
  readonly #db: Database;
  readonly #outbox: Outbox;
  readonly #monitor: ProjectMonitor;
  readonly #blocks: BlockRecorder;
  readonly #events: ProjectEvents;
  readonly #alarm: EarliestAlarm;
  readonly #runner: JobRunner;
  readonly #retries: Retries;
  readonly #preparations = new Turns(1);
  protected readonly measurements: MeasurementStore;
  protected readonly quota: StorageQuota;

  constructor(state: DurableObjectState, env: CoordinatorEnv) {
    super(state, env);
    const { storage } = state;
    const settings = () => readSettings(env);
    const waitUntil = (work: Promise<unknown>) => state.waitUntil(work);
    this.measurements = new MeasurementStore(storage, settings().MEASURE_INTERVAL_SECONDS, (hostId) =>
      hostLink(env, hostId).measurementHead(this.#projectId),
    );
    this.#db = openDatabase(env.DB);
    this.#alarm = new EarliestAlarm(storage);
    this.#retries = new Retries(this.#alarm);
    void state.blockConcurrencyWhile(() => this.#alarm.recall());
    const wakeAt = (timestamp: number) => this.#alarm.wakeAt(timestamp);
    this.#outbox = new Outbox({ storage, settings, wakeAt, waitUntil });
    // A counter that is away holds back no mail.
    const mayAlert = async (tenantId: string) => {
      const counted = await enforce(env, bucketOf.alerts(tenantId));
      return counted.ok || counted.failure.code !== 'RATE_LIMITED';
    };
    this.#blocks = new BlockRecorder({ db: this.#db, storage, settings, outbox: this.#outbox, mayAlert });
    this.quota = new StorageQuota({
      db: this.#db,
      storage,
      settings,
      outbox: this.#outbox,
      mayAlert,
      measurements: this.measurements,
    });
    this.#events = new ProjectEvents({
      env,
      db: this.#db,
      storage,
      waitUntil,
      retries: this.#retries,
      deliver: (webhookId, events) => webhookSenderOf(env, webhookId).enqueue(events),
    });
    this.#monitor = new ProjectMonitor({
      env,
      db: this.#db,
      measurements: this.measurements,
      quota: this.quota,
      callHost: (hostId) => hostCaller(env, hostId),
      applyAccess: () => this.#applyAccess(),
      waitUntil,
    });
    this.#runner = new JobRunner({
      db: this.#db,
      settings: settings(),
      callHost: (hostId) => hostCaller(env, hostId),
      sagas: SAGAS,
      wakeAt,
      begun: () => this.#events.publishToStreams(this.#projectId),
      changed: () => this.#events.publish(this.#projectId),
      // The first measurement can be a minute away.
      created: ({ projectId, hostId }) => this.ctx.waitUntil(this.#monitor.evaluateNow(projectId, hostId)),
    });
  }

  get monitor(): ProjectMonitor {
    return this.#monitor;
  }

  get events(): ProjectEvents {
    return this.#events;
  }

  async recordMeasurement(
    measurement: ProjectMeasurement,
    hostId?: string,
    kept?: string | null,
  ): Promise<string | null> {
    return this.#monitor.record(measurement, hostId, kept);
  }

  async recordBlocks(blocks: ProjectBlocks, hostId?: string): Promise<void> {
    this.#armAlarm();
    await this.#blocks.record(blocks, hostId);
    this.#events.publish(this.#projectId);
  }

  /** Creates a project with its `main`. Nothing is reserved while the host is not linked. */
  async createProject(request: ProjectRequest, waitMs: number): Promise<Result<CreationProgress, Failure>> {
    if (!(await isLinked(this.env, request.hostId))) return fail({ code: 'HOST_UNAVAILABLE' });
    this.#armAlarm();
    const reserved = await reserveProject(this.#db, readSettings(this.env), request, new Date());
    if (!reserved.ok) return reserved;
    return this.#run(reserved.value, waitMs);
  }

  /**
   * Creates the branches, or responds with the one that has the name, as it is or reset (`on_exists`). Of parallel
   * requests for one name one creates the branch, and the others wait. If the host is away, its first call fails.
   */
  async createBranches(request: BranchRequest, waitMs: number): Promise<Result<CreationProgress, Failure>> {
    const { onExists } = request;
    const { hostId } = request.project;
    const deadline = Date.now() + waitMs;
    if (onExists !== 'fail' && !(await isLinked(this.env, hostId))) return fail({ code: 'HOST_UNAVAILABLE' });
    this.#armAlarm();
    for (let tries = 1; ; ) {
      const existing = onExists === 'fail' ? null : await existingBranch(this.#db, request);
      if (existing?.creation) {
        const end = await this.#endOf(existing.creation, Math.min(until(deadline), READ_AGAIN_MS));
        if (!end.ok || (!end.value.response && until(deadline) === 0)) return end;
        // Read again, because the branch of a batch, or of another source, is another response.
        continue;
      }
      if (existing && onExists === 'reset')
        return this.#resetExisting(existing.branch, request, until(deadline));
      if (existing) return returnExisting(existing.branch, request);
      const reserved = await this.#sharing(request, (shared) => this.#reserveCreation(shared));
      if (reserved.ok) return this.#run(reserved.value, until(deadline));
      if (onExists === 'fail' || reserved.failure.code !== 'BRANCH_EXISTS' || tries === TRIES)
        return reserved;
      tries += 1;
    }
  }

  async #reserveCreation(request: BranchRequest): Promise<Result<JobRow, Failure>> {
    const { project, branches } = request;
    const sized = await this.#readSizes(project.id, project.hostId);
    if (!sized.ok) return sized;
    const admission = { ...request, projectId: project.id, branchIds: branches.map(({ id }) => id) };
    return this.quota.reserveWithinQuota(admission, sized.value, () =>
      reserveBranches(this.#db, readSettings(this.env), request, new Date()),
    );
  }

  /** Resets the branch that a creation has found, with the life of the request; its lease is still renewed. */
  async #resetExisting(
    branch: BranchRow,
    { jobId, project, source, life, actor, keyUse }: BranchRequest,
    waitMs: number,
  ): Promise<Result<CreationProgress, Failure>> {
    if (branch.protected) return fail({ code: 'BRANCH_PROTECTED' });
    const allowed = checkResetTo(project, branch, source.content);
    if (!allowed.ok) return allowed;
    const about = { jobId, snapshotId: crypto.randomUUID(), branch, source, life, hostId: project.hostId };
    return this.resetBranch({ ...about, actor, keyUse, asCreation: true }, waitMs);
  }

  async resetBranch(request: ResetRequest, waitMs: number): Promise<Result<CreationProgress, Failure>> {
    const { branch, hostId } = request;
    const deadline = Date.now() + waitMs;
    const idleBy = Date.now() + IDLE_WITHIN_MS;
    if (!(await isLinked(this.env, hostId))) return fail({ code: 'HOST_UNAVAILABLE' });
    this.#armAlarm();
    const reserve = () => this.#sharing(request, (shared) => this.#reserveReset(shared));
    let reserved = await reserve();
    while (isBusy(reserved) && (await becomesIdle(this.#db, branch.id, idleBy))) reserved = await reserve();
    return reserved.ok ? this.#runLeaving(reserved.value, until(deadline)) : reserved;
  }

  /** Requests for masked data come one after another, so that only the first one makes the snapshot. */
  async #sharing<R extends { source: CloneSource }, T>(
    request: R,
    reserve: (request: R) => Promise<T>,
  ): Promise<T> {
    if (!request.source.prepared) return reserve(request);
    const end = await this.#preparations.take();
    try {
      return await reserve({ ...request, source: await shareSource(this.#db, request.source, new Date()) });
    } finally {
      end();
    }
  }

  async #reserveReset(request: ResetRequest, change?: UndoneChange): Promise<Result<JobRow, Failure>> {
    const { branch, source, hostId, keyUse } = request;
    const { id, projectId } = branch;
    const sized = await this.#readSizes(projectId, hostId);
    if (!sized.ok) return sized;
    const admission = { projectId, keyUse, source, branchIds: [id], replaced: id };
    return this.quota.reserveWithinQuota(admission, sized.value, () =>
      reserveReset(this.#db, request, new Date(), change),
    );
  }

  async renameBranch(request: RenameRequest, waitMs: number): Promise<Result<CreationProgress, Failure>> {
    const deadline = Date.now() + waitMs;
    if (!(await isLinked(this.env, request.project.hostId))) return fail({ code: 'HOST_UNAVAILABLE' });
    this.#armAlarm();
    const known = await this.#alreadyRenamed(request, until(deadline));
    if (known) return known;
    const reserved = await reserveRename(this.#db, request, new Date());
    if (!reserved.ok) return (await this.#alreadyRenamed(request, until(deadline))) ?? reserved;
    this.ctx.waitUntil(this.#applyAccess());
    return this.#run(reserved.value, until(deadline));
  }

  /** A repeated request waits for the job of the first one. */
  async #alreadyRenamed(request: RenameRequest, waitMs: number) {
    const known = await alreadyRenamed(this.#db, request);
    if (!known) return null;
    if (known.jobId) return this.#endOf(known.jobId, waitMs);
    return ok({ response: renameResponse(known.branch) });
  }

  async restoreBranch(request: RestoreRequest, waitMs: number): Promise<Result<CreationProgress, Failure>> {
    const { branch, project } = request;
    const deadline = Date.now() + waitMs;
    const idleBy = Date.now() + IDLE_WITHIN_MS;
    if (!(await isLinked(this.env, project.hostId))) return fail({ code: 'HOST_UNAVAILABLE' });
    this.#armAlarm();
    let reserved = await this.#reserveRestore(request);
    while (isBusy(reserved) && (await becomesIdle(this.#db, branch.id, idleBy)))
      reserved = await this.#reserveRestore(request);
    return reserved.ok ? this.#runLeaving(reserved.value, until(deadline)) : reserved;
  }

  async #reserveRestore(request: RestoreRequest): Promise<Result<JobRow, Failure>> {
    const { project, branch, snapshot, keyUse } = request;
    const sized = await this.#readSizes(project.id, project.hostId);
    if (!sized.ok) return sized;
    const source = await keptSource(this.#db, snapshot);
    if (!source.ok) return source;
    const admission = { projectId: project.id, keyUse, source: source.value, branchIds: [branch.id] };
    return this.quota.reserveWithinQuota(admission, sized.value, () =>
      reserveRestore(this.#db, readSettings(this.env), request, new Date()),
    );
  }

  async takeSnapshot(request: SnapshotRequest, waitMs: number): Promise<Result<CreationProgress, Failure>> {
    const deadline = Date.now() + waitMs;
    if (!(await isLinked(this.env, request.hostId))) return fail({ code: 'HOST_UNAVAILABLE' });
    this.#armAlarm();
    const { branch, kind } = request;
    const excess = kind === 'checkpoint' && (await this.quota.fileExcess(branch.projectId, branch.id));
    if (excess) return fail(excess);
    const idleBy = Date.now() + IDLE_WITHIN_MS;
    const reserve = () => reserveSnapshot(this.#db, readSettings(this.env), request, new Date());
    let reserved = await reserve();
    while (isBusy(reserved) && (await becomesIdle(this.#db, branch.id, idleBy))) reserved = await reserve();
    return reserved.ok ? this.#runLeaving(reserved.value, until(deadline)) : reserved;
  }

  async deleteSnapshot({ snapshot, hostId, actor }: SnapshotDeletion): Promise<Result<JobRow, Failure>> {
    this.#armAlarm();
    const job = dropJob(snapshot, { hostId, actor, createdBy: actor.userId }, new Date());
    return this.#begin(await deleteSnapshot(this.#db, snapshot, job, job.createdAt));
  }

  async rehearseChange(request: RehearseRequest): Promise<Result<JobRow, Failure>> {
    this.#armAlarm();
    return this.#begin(
      await this.#sharing(request, (shared) => reserveRehearsal(this.#db, shared, new Date())),
    );
  }

  async applyChange(request: ApplyRequest): Promise<Result<JobRow | null, Failure>> {
    this.#armAlarm();
    if (request.dueAt === null) return this.#begin(await reserveApplication(this.#db, request, new Date()));
    const stored = await schedule(this.#db, request, new Date());
    this.#events.publish(this.#projectId);
    this.#alarm.wakeAt(request.dueAt.getTime());
    return stored.ok ? ok(null) : stored;
  }

  async undoChange(change: ChangeRow, request: ResetRequest): Promise<Result<JobRow, Failure>> {
    if (!(await isLinked(this.env, request.hostId))) return fail({ code: 'HOST_UNAVAILABLE' });
    this.#armAlarm();
    const reserved = await this.#reserveReset(request, undoOf(this.#db, change, new Date()));
    if (reserved.ok) this.ctx.waitUntil(this.#runner.start(reserved.value).then(() => this.#resumeWork()));
    return reserved;
  }

  async compareBranch(request: ComparisonRequest): Promise<Result<JobRow, Failure>> {
    this.#armAlarm();
    return this.#begin(await reserveComparison(this.#db, request, new Date()));
  }

  async awaitTrial(request: TrialRequest): Promise<Result<JobRow, Failure>> {
    this.#armAlarm();
    return this.#begin(await reserveTrial(this.#db, request, new Date()));
  }

  async startSource(request: StartRequest): Promise<Result<JobRow, Failure>> {
    if (!(await isLinked(this.env, request.hostId))) return fail({ code: 'HOST_UNAVAILABLE' });
    this.#armAlarm();
    const { CREDENTIAL_KEYS } = readSettings(this.env);
    return this.#begin(await reserveStart(this.#db, CREDENTIAL_KEYS, request, new Date()));
  }

  async endFollowing(request: EndRequest, writesStopped: boolean | null): Promise<Result<JobRow, Failure>> {
    this.#armAlarm();
    return this.#begin(await reserveEnd(this.#db, request, writesStopped, new Date()));
  }

  /** Runs the job of a reservation without waiting for it. */
  #begin(reserved: Result<JobRow, Failure>): Result<JobRow, Failure> {
    if (reserved.ok) this.ctx.waitUntil(this.#runner.start(reserved.value));
    return reserved;
  }

  async cancelJob(cancellation: Cancellation): Promise<Result<JobRow, Failure>> {
    this.#armAlarm();
    const stored = await storeCancellation(this.#db, cancellation, new Date());
    if (!stored.ok) return stored;
    this.ctx.waitUntil(this.#runner.resume(stored.value));
    this.ctx.waitUntil(this.#stopWork(stored.value));
    return stored;
  }

  /** The work may not have begun yet. If the host is away, the undoing of the job stops it there. */
  async #stopWork(job: JobRow): Promise<void> {
    const { id: job_id, projectId: project_id, hostId } = job;
    const call = hostCaller(this.env, hostId);
    const stop = async () => {
      if ('toHostId' in job.input)
        return hostCaller(this.env, job.input.toHostId)('transfer.cancel', { job_id, project_id });
      if (job.kind === 'branch.diff') return call('diff.cancel', { job_id, project_id });
      if (job.kind !== 'follow.cutover') return call('transfer.cancel', { job_id, project_id });
      const ofJob = eq(projectBranches.id, job.branchId ?? '');
      const [branch] = await this.#db.select().from(projectBranches).where(ofJob);
      return (
        branch &&
        call('follow.cancel_cutover', { project_id, branch_id: branch.id, database: branch.databaseName })
      );
    };
    for (let tries = 0; tries < STOP_TRIES; tries += 1) {
      await stop().catch(() => {});
      if (await this.#runner.endOf(job_id, STOP_EVERY_MS)) return;
    }
  }

  async recordFollow(report: FollowReport, hostId: string): Promise<void> {
    this.#armAlarm();
    const [project] = await this.#db.select().from(projects).where(eq(projects.id, report.project_id));
    // A report of a host that the project has left.
    if (project?.hostId !== hostId) return;
    await recordObservation(this.#db, project, report, new Date());
    this.#events.publish(this.#projectId);
  }

  async recordProgress({ job_id, percent, tables, replay }: WorkProgress): Promise<void> {
    this.#runner.report(job_id, { percent, ...(tables && { tables }), ...(replay && { replay }) });
  }

  async deleteBranch(deletion: BranchDeletion): Promise<Result<Deleted, Failure>> {
    this.#armAlarm();
    const deleted = await deleteBranch(this.#db, readSettings(this.env), deletion, new Date());
    if (deleted.ok) this.ctx.waitUntil(this.#runDeletion(deleted.value));
    return deleted;
  }

  /** The response comes first: it would wait for the work that follows it here. */
  async #runDeletion({ job, restorableUntil, isAccessPending }: Deleted): Promise<unknown> {
    if (restorableUntil) this.#alarm.wakeAt(restorableUntil.getTime());
    const { projectId, hostId } = job;
    await scheduler.wait(0);
    const access = isAccessPending ? this.#applyAccess() : this.#events.publish(projectId);
    return Promise.all([this.#runner.start(job), access, this.#monitor.evaluateNow(projectId, hostId)]);
  }

  async deleteProject(deletion: ProjectDeletion): Promise<Result<JobRow, Failure>> {
    this.#armAlarm();
    const job = newJob('project.delete', { branchId: null }, deletion, new Date());
    const marked = await markProjectDeleting(this.#db, job, job.createdAt);
    if (!marked.ok) return marked;
    // The deletion waits for the jobs of the project.
    for (const kind of CANCELLABLE_KINDS)
      await this.cancelJob({ projectId: deletion.projectId, kind, actor: null });
    // It waits for the end of a move, after which another host has the project.
    this.ctx.waitUntil(this.#runner.resume(job));
    return marked;
  }

  async moveProject(request: MoveRequest): Promise<Result<JobRow, Failure>> {
    const { project, toHostId } = request;
    for (const hostId of [project.hostId, toHostId])
      if (!(await isLinked(this.env, hostId))) return fail({ code: 'HOST_UNAVAILABLE' });
    const sized = await this.#readSizes(project.id, project.hostId);
    if (!sized.ok) return sized;
    this.#armAlarm();
    const settings = readSettings(this.env);
    const reserved = await reserveMove(this.#db, settings, request, sized.value, new Date());
    if (reserved.ok) this.ctx.waitUntil(this.#continueDrain(reserved.value));
    return this.#begin(reserved);
  }

  /** The reconciliation of the host begins the next move of a drain. */
  async #continueDrain({ id, hostId }: JobRow): Promise<void> {
    const link = hostLink(this.env, hostId);
    if (await this.#runner.endOf(id, DRAIN_WITHIN_MS)) await link.reconcile().catch(() => {});
  }

  async addRule({ rule, actor, keyUse }: RuleAddition): Promise<Result<RuleChange, Failure>> {
    const insert = () => insertRule(this.#db, rule, actor, keyUse);
    const added = await this.#changeRules(insert);
    if (keyUse && added.ok && added.value.applied)
      await storeResponse(this.#db, rule.id, ruleResponse(rule, true));
    return added;
  }

  changeRule({ actor, change, ...rule }: RuleEdit): Promise<Result<RuleChange, Failure>> {
    const store = change === 'remove' ? deleteRule : storeRuleChange(change);
    return this.#changeRules(() => store(this.#db, rule, actor, new Date()));
  }

  /** The alarm also finds when the rules end. */
  async #changeRules(store: () => Promise<Result<unknown, Failure>>) {
    this.#armAlarm();
    const stored = await store();
    if (!stored.ok) return stored;
    const { ok: applied } = await this.#applyAccess();
    return ok({ applied });
  }

  /** Changes nothing while the host is not linked. */
  async rotateCredentials(rotation: Rotation): Promise<Result<null, Failure>> {
    const { hostId } = rotation;
    if (!(await isLinked(this.env, hostId))) return fail({ code: 'HOST_UNAVAILABLE' });
    this.#armAlarm();
    const { CREDENTIAL_KEYS } = readSettings(this.env);
    const stored = await storeRotation(this.#db, CREDENTIAL_KEYS, rotation, new Date());
    return stored.ok ? this.#applyAccess() : stored;
  }

  async applyAccess(): Promise<Result<null, Failure>> {
    this.#armAlarm();
    return this.#applyAccess();
  }

  async changeLifespan(change: LifespanChange): Promise<Result<BranchRow, Failure>> {
    this.#armAlarm();
    return this.#changed(await storeLifespan(this.#db, readSettings(this.env), change, new Date()), true);
  }

  async changeSettings(change: SettingsChange): Promise<Result<BranchRow, Failure>> {
    this.#armAlarm();
    const stored = await storeSettings(this.#db, readSettings(this.env), change, new Date());
    return this.#changed(stored, change.attempts !== undefined);
  }

  async renewLease(renewal: LeaseRenewal): Promise<Result<BranchRow, Failure>> {
    return this.#changed(await storeRenewal(this.#db, renewal, new Date()), false);
  }

  async #changed(stored: Result<BranchRow, Failure>, changesAccess: boolean) {
    if (!stored.ok) return stored;
    if (changesAccess) await this.#applyAccess();
    const { expiresAt, leaseEndsAt, deletesAt } = stored.value;
    for (const end of [expiresAt, leaseEndsAt, deletesAt]) if (end) this.#alarm.wakeAt(end.getTime());
    return stored;
  }

  async sendMails(mails: Mail[], occasion?: string): Promise<void> {
    const { kv } = this.ctx.storage;
    if (occasion !== undefined && kv.get(MAILED_OCCASION) === occasion) return;
    // The mails and this are one write, because nothing is awaited between them.
    if (occasion !== undefined) kv.put(MAILED_OCCASION, occasion);
    for (const mail of mails) this.#outbox.put(mail, Date.now());
  }

  async wake(): Promise<void> {
    this.#armAlarm();
    await this.#resumeWork();
  }

  /**
   * Does not throw: the runtime retries a failed alarm a few times only, and D1 can be unavailable for
   * longer.
   */
  override async alarm(): Promise<void> {
    this.#alarm.fired();
    this.ctx.waitUntil(this.#outbox.send(Date.now()));
    if (this.#projectId === '') return;
    try {
      await this.#resumeWork();
      this.#retries.succeeded('project.not_looked_after');
    } catch (error) {
      this.#retries.failed('project.not_looked_after', this.#projectId, error);
    }
  }

  /**
   * The sizes that the host has just read. The alarm guards writes of the next seconds, and the host may need
   * longer, so it is set again for the reservation that follows.
   */
  async #readSizes(projectId: string, hostId: string): Promise<Result<ProjectSizes['sizes'], Failure>> {
    const sized = await this.#monitor.readSizes(projectId, hostId);
    this.#armAlarm();
    return sized.ok ? ok(sized.value.sizes) : sized;
  }

  /** Runs the job of a reservation and waits for its end, but no longer than its client waits. */
  #run(job: JobRow, waitMs: number): Promise<Result<CreationProgress, Failure>> {
    this.ctx.waitUntil(this.#runner.start(job));
    return this.#endOf(job.id, waitMs);
  }

  /** As `#run`, for a job that can leave a snapshot behind: its end may be the next one. */
  async #runLeaving(job: JobRow, waitMs: number): Promise<Result<CreationProgress, Failure>> {
    const outcome = await this.#run(job, waitMs);
    this.ctx.waitUntil(this.#resumeWork());
    return outcome;
  }

  async #endOf(jobId: string, waitMs: number): Promise<Result<CreationProgress, Failure>> {
    const end = await this.#runner.endOf(jobId, waitMs);
    if (end && !end.ok) return end;
    if (end && !end.value) throw new Error(`job ${jobId} ended without a response`);
    return ok(end?.value ? { response: end.value } : { response: null, jobId });
  }

  /** Applies the access on the host; after a failure it is retried until it succeeds. */
  async #applyAccess(): Promise<Result<null, Failure>> {
    this.#events.publish(this.#projectId);
    try {
      const { CREDENTIAL_KEYS } = readSettings(this.env);
      await sendAccess(this.#db, CREDENTIAL_KEYS, (id) => hostCaller(this.env, id), this.#projectId);
      this.#retries.succeeded('access.not_applied');
      this.#events.publish(this.#projectId);
      return ok(null);
    } catch (error) {
      this.#retries.failed('access.not_applied', this.#projectId, error);
      return fail(publicFailure(jobError(error)));
    }
  }

  /** Starts open work without waiting for it: an alarm that waited would delay the alarms of the retries. */
  async #resumeWork(): Promise<void> {
    const projectId = this.#projectId;
    const settings = readSettings(this.env);
    this.#alarm.wakeAt(await endLives(this.#db, settings, projectId, () => this.#armAlarm()));
    await this.#blocks.finish();
    const [open, [project]] = await Promise.all([
      openJobs(this.#db, projectId),
      this.#db.select().from(projects).where(eq(projects.id, projectId)),
    ]);
    if (open.length === 0 && !project) {
      await this.#events.finish(projectId);
      await this.ctx.storage.deleteAll();
      this.measurements.forget();
      this.#alarm.deleted();
      return;
    }
    this.#events.publish(projectId);
    if (open.length > 0) this.#armAlarm();
    for (const job of open) this.ctx.waitUntil(this.#runner.resume(job));
    if (project?.status === 'active' && project.accessApplied < project.accessRevision) {
      this.ctx.waitUntil(this.#applyAccess());
    }
  }

  /** Sets the alarm that finds the work after a crash. To be called before the work is written anywhere. */
  #armAlarm(): void {
    this.#alarm.guard(Date.now() + CHECK_AFTER_MS);
  }
}
