import { DurableObject } from 'cloudflare:workers';
import { eq } from 'drizzle-orm';
import type { ProjectBlocks } from '../../shared/block.ts';
import type { Failure } from '../../shared/failures.ts';
import type { ProjectMeasurement } from '../../shared/measurement.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import {
  deleteRule,
  insertRule,
  type RuleAddition,
  type RuleChange,
  type RuleEnd,
  ruleResponse,
  storeRuleEnd,
} from '../access/change-rules.ts';
import { type Rotation, storeRotation } from '../access/credentials.ts';
import { sendAccess } from '../access/send-access.ts';
import type { BranchRequest } from '../branches/create-branches.ts';
import { type BranchDeletion, type Deleted, deleteBranch } from '../branches/delete-branch.ts';
import { type LeaseRenewal, type LifespanChange, storeRenewal } from '../branches/expiry.ts';
import { type Database, type DatabaseBinding, openDatabase } from '../database/database.ts';
import { type BranchRow, type JobRow, projects } from '../database/schema.ts';
import { ProjectEvents } from '../events/project-events.ts';
import { type HostLinks, hostCaller, isLinked } from '../hosts/host-client.ts';
import { type CreationProgress, storeResponse } from '../idempotency/idempotency-key.ts';
import { JobRunner } from '../jobs/job-runner.ts';
import { newJob, openJobs } from '../jobs/job-store.ts';
import { jobError, publicFailure } from '../jobs/saga.ts';
import { Outbox } from '../mail/outbox.ts';
import { BlockRecorder } from '../monitoring/blocks.ts';
import { MeasurementStore } from '../monitoring/measurements.ts';
import { ProjectMonitor } from '../monitoring/project-monitor.ts';
import { StorageQuota } from '../monitoring/storage-quota.ts';
import { objectName } from '../object-name.ts';
import type { ProjectRequest } from '../projects/create-project.ts';
import { markProjectDeleting, type ProjectDeletion } from '../projects/delete-project.ts';
import type { Limiters } from '../rate-limits/limiter-client.ts';
import { readSettings } from '../settings.ts';
import { type WebhookSenders, webhookSenderOf } from '../webhooks/webhook.ts';

import { EarliestAlarm, Retries } from './alarm.ts';
import type { CoordinatorRpc } from './coordinator-rpc.ts';
import { createBranches, createProject } from './creations.ts';
import { endLives } from './end-lives.ts';
import { ProjectHistory } from './project-history.ts';
import type { CoordinatorParts } from './run-job.ts';
import { SAGAS } from './sagas.ts';

/**
 * Interval of the checks while jobs are open; shorter than any life or lease, whose end the last check
 * schedules.
 */
const CHECK_AFTER_MS = 20_000;

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
  readonly #parts: CoordinatorParts;
  readonly #history: ProjectHistory;
  readonly #blocks: BlockRecorder;
  readonly #events: ProjectEvents;
  readonly #alarm: EarliestAlarm;
  readonly #runner: JobRunner;
  readonly #retries: Retries;
  protected readonly quota: StorageQuota;

  constructor(state: DurableObjectState, env: CoordinatorEnv) {
    super(state, env);
    const { storage } = state;
    const settings = () => readSettings(env);
    const waitUntil = (work: Promise<unknown>) => state.waitUntil(work);
    const measurements = new MeasurementStore(storage, settings().MEASURE_INTERVAL_SECONDS);
    this.#db = openDatabase(env.DB);
    this.#alarm = new EarliestAlarm(storage);
    this.#retries = new Retries(this.#alarm);
    void state.blockConcurrencyWhile(() => this.#alarm.recall());
    const wakeAt = (timestamp: number) => this.#alarm.wakeAt(timestamp);
    this.#outbox = new Outbox({ storage, settings, wakeAt, waitUntil });
    this.#blocks = new BlockRecorder({ db: this.#db, storage, settings, outbox: this.#outbox });
    this.quota = new StorageQuota({
      db: this.#db,
      storage,
      settings,
      outbox: this.#outbox,
      lastMeasurement: () => measurements.last(),
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
      db: this.#db,
      measurements,
      quota: this.quota,
      callHost: (hostId) => hostCaller(env, hostId),
      applyAccess: (hostId) => this.#applyAccess(hostId),
      waitUntil,
    });
    this.#parts = {
      db: this.#db,
      settings,
      monitor: this.#monitor,
      quota: this.quota,
      isLinked: (hostId) => isLinked(env, hostId),
      armAlarm: () => this.#armAlarm(),
      running: () => ({ runner: this.#runner, waitUntil }),
      changed: () => waitUntil(this.#resumeWork()),
    };
    this.#history = new ProjectHistory(this.#parts);
    this.#runner = new JobRunner({
      db: this.#db,
      settings: settings(),
      callHost: (hostId) => hostCaller(env, hostId),
      sagas: SAGAS,
      wakeAt,
      begun: () => this.#events.publishToStreams(this.#projectId),
      changed: () => this.#events.publish(this.#projectId),
    });
  }

  get history(): ProjectHistory {
    return this.#history;
  }

  get monitor(): ProjectMonitor {
    return this.#monitor;
  }

  get events(): ProjectEvents {
    return this.#events;
  }

  async recordMeasurement(measurement: ProjectMeasurement, hostId?: string): Promise<void> {
    await this.#monitor.record(measurement, hostId);
  }

  async recordBlocks(blocks: ProjectBlocks, hostId?: string): Promise<void> {
    this.#armAlarm();
    await this.#blocks.record(blocks, hostId);
    this.#events.publish(this.#projectId);
  }

  createProject(request: ProjectRequest, waitMs: number): Promise<Result<CreationProgress, Failure>> {
    return createProject(this.#parts, request, waitMs);
  }

  createBranches(request: BranchRequest, waitMs: number): Promise<Result<CreationProgress, Failure>> {
    return createBranches({ ...this.#parts, history: this.#history }, request, waitMs);
  }

  async deleteBranch(deletion: BranchDeletion): Promise<Result<Deleted, Failure>> {
    this.#armAlarm();
    const deleted = await deleteBranch(this.#db, readSettings(this.env), deletion, new Date());
    if (deleted.ok) {
      const { job, restorableUntil } = deleted.value;
      this.ctx.waitUntil(this.#runner.start(job));
      this.ctx.waitUntil(this.#applyAccess(job.hostId));
      this.ctx.waitUntil(this.#monitor.evaluateNow(job.projectId, job.hostId));
      if (restorableUntil) this.#alarm.wakeAt(restorableUntil.getTime());
    }
    return deleted;
  }

  async deleteProject(deletion: ProjectDeletion): Promise<Result<JobRow, Failure>> {
    this.#armAlarm();
    const job = newJob('project.delete', { branchId: null }, deletion, new Date());
    const marked = await markProjectDeleting(this.#db, job, job.createdAt);
    if (marked.ok) this.ctx.waitUntil(this.#runner.start(job));
    return marked;
  }

  async addRule({ rule, hostId, actor, keyUse }: RuleAddition): Promise<Result<RuleChange, Failure>> {
    const insert = () => insertRule(this.#db, rule, actor, keyUse);
    const added = await this.#changeRules(hostId, insert);
    if (keyUse && added.ok && added.value.applied)
      await storeResponse(this.#db, rule.id, ruleResponse(rule, true));
    return added;
  }

  endRule({ hostId, actor, at, ...rule }: RuleEnd): Promise<Result<RuleChange, Failure>> {
    const store = at === 'now' ? deleteRule : storeRuleEnd(at);
    return this.#changeRules(hostId, () => store(this.#db, rule, actor, new Date()));
  }

  /** The alarm also finds when the rules end. */
  async #changeRules(hostId: string, store: () => Promise<Result<unknown, Failure>>) {
    this.#armAlarm();
    const stored = await store();
    if (!stored.ok) return stored;
    const { ok: applied } = await this.#applyAccess(hostId);
    return ok({ applied });
  }

  /** Changes nothing while the host is not linked. */
  async rotateCredentials(rotation: Rotation): Promise<Result<null, Failure>> {
    const { hostId } = rotation;
    if (!(await isLinked(this.env, hostId))) return fail({ code: 'HOST_UNAVAILABLE' });
    this.#armAlarm();
    const { CREDENTIAL_KEYS } = readSettings(this.env);
    const stored = await storeRotation(this.#db, CREDENTIAL_KEYS, rotation, new Date());
    return stored.ok ? this.#applyAccess(hostId) : stored;
  }

  async applyAccess(hostId: string): Promise<Result<null, Failure>> {
    this.#armAlarm();
    return this.#applyAccess(hostId);
  }

  async changeLifespan(change: LifespanChange): Promise<Result<BranchRow, Failure>> {
    this.#armAlarm();
    const changed = await this.quota.extendWithinQuota(change);
    if (!changed.ok) return changed;
    await this.#applyAccess(change.hostId);
    const { expiresAt } = changed.value;
    if (expiresAt) this.#alarm.wakeAt(expiresAt.getTime());
    return changed;
  }

  async renewLease(renewal: LeaseRenewal): Promise<Result<BranchRow, Failure>> {
    const renewed = await storeRenewal(this.#db, renewal, new Date());
    if (renewed.ok && renewed.value.leaseEndsAt) this.#alarm.wakeAt(renewed.value.leaseEndsAt.getTime());
    return renewed;
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

  /** Applies the access on the host; after a failure it is retried until it succeeds. */
  async #applyAccess(hostId: string): Promise<Result<null, Failure>> {
    this.#events.publish(this.#projectId);
    try {
      const { CREDENTIAL_KEYS } = readSettings(this.env);
      await sendAccess(this.#db, CREDENTIAL_KEYS, hostCaller(this.env, hostId), this.#projectId);
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
      this.#alarm.deleted();
      return;
    }
    this.#events.publish(projectId);
    if (open.length > 0) this.#armAlarm();
    for (const job of open) this.ctx.waitUntil(this.#runner.resume(job));
    if (project?.status === 'active' && project.accessApplied < project.accessRevision) {
      this.ctx.waitUntil(this.#applyAccess(project.hostId));
    }
  }

  /** Sets the alarm that finds the work after a crash. To be called before the work is written anywhere. */
  #armAlarm(): void {
    this.#alarm.guard(Date.now() + CHECK_AFTER_MS);
  }
}
