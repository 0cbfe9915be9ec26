import { DurableObject } from 'cloudflare:workers';
import { eq } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import type { ProjectMeasurement } from '../../shared/measurement.ts';
import { sendAccess } from '../access/apply-access.ts';
import { deleteRule, insertRule, ruleResponse } from '../access/change-rules.ts';
import type { NetworkRuleRow } from '../access/network-rule-resource.ts';
import { type KeyUse, storeResponse } from '../api/idempotency-key.ts';
import type { Actor } from '../audit/actor.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import { type LifespanChange, storeLifespan } from '../branches/change-lifespan.ts';
import { createBranchJob } from '../branches/create-branch.ts';
import { deleteBranchJob, markBranchDeleted } from '../branches/delete-branch.ts';
import { expireBranches } from '../branches/expire-branches.ts';
import { type BranchRequest, reserveBranch } from '../branches/reserve-branch.ts';
import { type Rotation, storeRotation } from '../credentials/rotate-credentials.ts';
import { type Database, openDatabase } from '../database/database.ts';
import { projects } from '../database/schema.ts';
import type { Env } from '../env.ts';
import { hostCaller, isLinked } from '../hosts/host-client.ts';
import { jobError, retryDelay } from '../jobs/job-failure.ts';
import { JobRunner } from '../jobs/job-runner.ts';
import { newJob, openJobs } from '../jobs/job-store.ts';
import type { Reservation } from '../jobs/reservation.ts';
import type { JobResponse, JobRow, SagaTable } from '../jobs/saga.ts';
import { logEvent } from '../log.ts';
import { ProjectMonitor } from '../monitoring/project-monitor.ts';
import { readSettings } from '../settings.ts';
import { createProjectJob } from './create-project.ts';
import { deleteProjectJob, markProjectDeleting } from './delete-project.ts';
import { EarliestAlarm } from './earliest-alarm.ts';
import { type ProjectRequest, reserveProject } from './reserve-project.ts';

/** If nothing else wakes this object, it looks after its open jobs this often. */
const LOOK_AFTER_MS = 20_000;
/** What failed is tried again as a job is after so many attempts more: in two seconds at first. */
const ATTEMPTS_AHEAD = 3;
const PROJECT_ID = 'project_id';

const SAGAS: SagaTable = {
  'project.create': createProjectJob,
  'branch.create': createBranchJob,
  'branch.delete': deleteBranchJob,
  'project.delete': deleteProjectJob,
};

/** How an order ended, as far as its client waited. */
export type CreationOutcome = { response: JobResponse } | { pending: string } | { failure: Failure };
export type DeletionOutcome = { job: JobRow } | { failure: Failure };
export type LifespanOutcome = { branch: BranchRow } | { failure: Failure };
/** `applied`: both ports obey already. */
export type AccessOutcome = { applied: boolean } | { failure: Failure };

/** Who deletes what, under which job id. */
interface Deletion {
  id: string;
  projectId: string;
  hostId: string;
  actor: Actor;
}

/**
 * One object per project (`idFromName(project id)`): everything that changes the project's databases goes
 * through it. Its storage holds the project id, an alarm, and what was measured (`ProjectMonitor`): jobs, records
 * and rules are in D1, and the alarm is set before a job is written, so that whatever dies, the job is found and
 * finished.
 */
export class ProjectCoordinator extends DurableObject<Env> {
  readonly #db: Database;
  readonly #monitor: ProjectMonitor;
  readonly #alarm: EarliestAlarm;
  #runner: JobRunner | undefined;
  /** How often in a row. */
  readonly #failures = { 'access.not_applied': 0, 'project.not_looked_after': 0 };

  constructor(state: DurableObjectState, env: Env) {
    super(state, env);
    this.#db = openDatabase(env.DB);
    this.#alarm = new EarliestAlarm(state.storage);
    void state.blockConcurrencyWhile(() => this.#alarm.recall());
    this.#monitor = new ProjectMonitor({
      env,
      db: this.#db,
      storage: state.storage,
      wakeAt: (moment) => this.#alarm.wakeAt(moment),
      applyAccess: (projectId, hostId) => this.#applyAccess(projectId, hostId),
      waitUntil: (work) => state.waitUntil(work),
    });
  }

  /** What is known by measurement; a call of its methods is one trip. */
  get monitor(): ProjectMonitor {
    return this.#monitor;
  }

  /** A measurement of the project. @param hostId of the host that sent it */
  async recordMeasurement(measurement: ProjectMeasurement, hostId?: string): Promise<void> {
    await this.#monitor.record(measurement, hostId);
  }

  /** Makes a project and its `main` database. @param waitMs how long the client waits for the end */
  async createProject(order: ProjectRequest, waitMs: number): Promise<CreationOutcome> {
    return this.#carryOut(order.projectId, order.hostId, waitMs, () =>
      reserveProject(this.#db, readSettings(this.env), order, new Date()),
    );
  }

  /** Makes a branch of a live one. @param waitMs how long the client waits for the end */
  async createBranch(order: BranchRequest, waitMs: number): Promise<CreationOutcome> {
    const clone = { projectId: order.project.id, branchId: order.branchId, sourceId: order.source.id };
    return this.#carryOut(order.project.id, order.project.hostId, waitMs, () =>
      this.#monitor.reserveClone(clone, () =>
        reserveBranch(this.#db, readSettings(this.env), order, new Date()),
      ),
    );
  }

  /** Marks the branch deleted; its database is dropped by a job. */
  async deleteBranch(about: Deletion & { branchId: string }): Promise<DeletionOutcome> {
    const job = newJob({ ...about, kind: 'branch.delete' }, new Date());
    const outcome = await this.#record(job, markBranchDeleted);
    if ('job' in outcome) this.ctx.waitUntil(this.#applyAccess(about.projectId, about.hostId));
    return outcome;
  }

  /** Marks the project as being deleted; a job drops all it has. */
  async deleteProject(about: Deletion): Promise<DeletionOutcome> {
    const job = newJob({ ...about, branchId: null, kind: 'project.delete' }, new Date());
    return this.#record(job, markProjectDeleting);
  }

  async addRule(
    rule: NetworkRuleRow,
    hostId: string,
    actor: Actor,
    keyUse: KeyUse | null,
  ): Promise<AccessOutcome> {
    this.#insure(rule.projectId);
    const failure = await insertRule(this.#db, rule, actor, keyUse);
    if (failure) return { failure };
    const applied = await this.#applyAccess(rule.projectId, hostId);
    if (keyUse && applied) await storeResponse(this.#db, rule.id, ruleResponse(rule, true));
    return { applied };
  }

  async removeRule(projectId: string, hostId: string, ruleId: string, actor: Actor): Promise<AccessOutcome> {
    this.#insure(projectId);
    const failure = await deleteRule(this.#db, projectId, ruleId, actor, new Date());
    return failure ? { failure } : { applied: await this.#applyAccess(projectId, hostId) };
  }

  /** Gives the branch new passwords. Nothing is changed while its host is away. */
  async rotateCredentials(rotation: Rotation): Promise<AccessOutcome> {
    const { projectId, hostId } = rotation;
    if (!(await isLinked(this.env, hostId))) return { failure: { code: 'HOST_UNAVAILABLE' } };
    this.#insure(projectId);
    const { CREDENTIAL_KEYS } = readSettings(this.env);
    const failure = await storeRotation(this.#db, CREDENTIAL_KEYS, rotation, new Date());
    return failure ? { failure } : { applied: await this.#applyAccess(projectId, hostId) };
  }

  /** Has the host obey what is on record by now. @returns whether it does */
  async applyAccess(projectId: string, hostId: string): Promise<boolean> {
    this.#insure(projectId);
    return this.#applyAccess(projectId, hostId);
  }

  /** Lets the branch live for another time; an expired one comes back. */
  async changeLifespan(change: LifespanChange): Promise<LifespanOutcome> {
    const { branch, hostId } = change;
    this.#insure(branch.projectId);
    const outcome = await this.#monitor.extend(branch.projectId, branch.id, () =>
      storeLifespan(this.#db, change, new Date()),
    );
    if ('failure' in outcome) return outcome;
    await this.#applyAccess(branch.projectId, hostId);
    if (outcome.branch.expiresAt) this.#alarm.wakeAt(outcome.branch.expiresAt.getTime());
    return outcome;
  }

  /** Resumes what is open: called when the project's host has linked up, and by the reconciler. */
  async wake(projectId: string): Promise<void> {
    this.#insure(projectId);
    await this.#lookAfter(projectId);
  }

  /** Does not throw: an alarm that fails is tried again a few times only, and D1 can be away for longer. */
  override async alarm(): Promise<void> {
    this.#alarm.spent();
    this.ctx.waitUntil(this.#monitor.sendMail());
    const projectId = await this.ctx.storage.get<string>(PROJECT_ID);
    if (!projectId) return;
    try {
      await this.#lookAfter(projectId);
      this.#failures['project.not_looked_after'] = 0;
    } catch (error) {
      this.#tryLater('project.not_looked_after', projectId, error);
    }
  }

  async #carryOut(
    projectId: string,
    hostId: string,
    waitMs: number,
    reserve: () => Promise<Reservation>,
  ): Promise<CreationOutcome> {
    if (!(await isLinked(this.env, hostId))) return { failure: { code: 'HOST_UNAVAILABLE' } };
    this.#insure(projectId);
    const reservation = await reserve();
    if ('refused' in reservation) return { failure: reservation.refused };
    const runner = this.#runnerFor(hostId);
    this.ctx.waitUntil(runner.start(reservation.job));
    const end = await runner.endOf(reservation.job.id, waitMs);
    if (end === null) return { pending: reservation.job.id };
    if (!end.ok) return { failure: end.failure };
    if (!end.response) throw new Error(`job ${reservation.job.id} ended without an answer`);
    return { response: end.response };
  }

  async #record(
    job: JobRow,
    recordDeletion: (db: Database, job: JobRow, now: Date) => Promise<Failure | null>,
  ): Promise<DeletionOutcome> {
    this.#insure(job.projectId);
    const failure = await recordDeletion(this.#db, job, job.createdAt);
    if (failure) return { failure };
    this.ctx.waitUntil(this.#runnerFor(job.hostId).start(job));
    return { job };
  }

  /** @returns whether both ports obey; if not, the access is applied when the host can be reached again */
  async #applyAccess(projectId: string, hostId: string): Promise<boolean> {
    try {
      const { CREDENTIAL_KEYS } = readSettings(this.env);
      await sendAccess(this.#db, CREDENTIAL_KEYS, hostCaller(this.env, hostId), projectId);
      this.#failures['access.not_applied'] = 0;
      return true;
    } catch (error) {
      this.#tryLater('access.not_applied', projectId, error);
      return false;
    }
  }

  /** Ever later, so that an object whose host is away can sleep; the host's return wakes it. */
  #tryLater(
    event: 'access.not_applied' | 'project.not_looked_after',
    projectId: string,
    error: unknown,
  ): void {
    logEvent(event, { project_id: projectId, ...jobError(error) });
    this.#alarm.wakeAt(Date.now() + retryDelay(ATTEMPTS_AHEAD + this.#failures[event]));
    this.#failures[event] += 1;
  }

  /** Starts what is open and returns: an alarm that waited for it would hold up the alarms of its retries. */
  async #lookAfter(projectId: string): Promise<void> {
    const nextExpiry = await expireBranches(this.#db, projectId, new Date());
    if (nextExpiry) this.#alarm.wakeAt(nextExpiry.getTime());
    const [open, [project]] = await Promise.all([
      openJobs(this.#db, projectId),
      this.#db.select().from(projects).where(eq(projects.id, projectId)),
    ]);
    if (open.length === 0 && !project) {
      await this.ctx.storage.deleteAll();
      this.#alarm.spent();
      return;
    }
    if (open.length > 0) this.#insure(projectId);
    for (const job of open) this.ctx.waitUntil(this.#runnerFor(job.hostId).start(job));
    if (project?.status === 'active' && project.accessApplied < project.accessRevision) {
      this.ctx.waitUntil(this.#applyAccess(projectId, project.hostId));
    }
  }

  #runnerFor(hostId: string): JobRunner {
    this.#runner ??= new JobRunner({
      db: this.#db,
      settings: readSettings(this.env),
      callHost: hostCaller(this.env, hostId),
      sagas: SAGAS,
      wakeAt: (moment) => this.#alarm.wakeAt(moment),
    });
    return this.#runner;
  }

  /** Sets the alarm that finds the work again, before the work is written anywhere. */
  #insure(projectId: string): void {
    void this.ctx.storage.put(PROJECT_ID, projectId);
    this.#alarm.wakeAt(Date.now() + LOOK_AFTER_MS);
  }
}
