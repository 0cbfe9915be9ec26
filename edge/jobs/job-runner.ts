import { and, eq, inArray, type SQL, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import type { JobError, JobKind, JobStatus, JobStep } from '../../shared/project/job.ts';
import { CONCURRENT_CREATIONS } from '../../shared/project/project-status.ts';
import type { HostFailureCode } from '../../shared/protocol/host-failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { BoundedMap } from '../bounded-map.ts';
import { OPEN_STATUSES } from '../database/conditions.ts';
import {
  type Database,
  hasChanged,
  inOneBatch,
  type Statement,
  writeThenRead,
} from '../database/database.ts';
import { idempotencyKeys, type JobOf, type JobRow, jobs } from '../database/schema.ts';
import type { CallHost } from '../hosts/host-client.ts';
import type { StoredResponse } from '../idempotency/idempotency-key.ts';
import { logEvent } from '../log.ts';
import { traced } from '../trace.ts';
import { branchIdsOf, READINGS, readOpenJob } from './job-store.ts';
import {
  failureClass,
  jobError,
  OvertakenError,
  publicFailure,
  retryDelay,
  type Saga,
  type SagaContext,
  type SagaTable,
  type StepReport,
  wasRefused,
} from './saga.ts';
import { Turns } from './turns.ts';

/** A job that ends sooner writes to D1 only once, at its end. */
const SHOW_PROGRESS_EVERY_MS = 1_000;

/** The steps of one attempt at a job, and their record in D1. */
export class JobProgress {
  readonly #db: Database;
  readonly #job: JobRow;
  readonly #steps: JobStep[];
  readonly #saved: () => void;
  readonly #timer: ReturnType<typeof setInterval>;

  /** @param saved called after the steps were written */
  constructor(db: Database, job: JobRow, stepNames: readonly string[], saved: () => void) {
    this.#db = db;
    this.#saved = saved;
    this.#job = job;
    this.#steps = stepNames.map((name) => ({ name, status: 'pending', started_at: null, finished_at: null }));
    this.#timer = setInterval(() => this.save({}).catch(() => {}), SHOW_PROGRESS_EVERY_MS);
  }

  async during(name: string, work: () => Promise<unknown>): Promise<void> {
    const step = this.#steps.find((candidate) => candidate.name === name);
    if (!step) throw new Error(`no step ${name}`);
    step.status = 'running';
    step.started_at = new Date().toISOString();
    try {
      await work();
      step.status = 'succeeded';
    } catch (error) {
      step.status = 'failed';
      throw error;
    } finally {
      step.finished_at = new Date().toISOString();
      delete step.percent;
      delete step.replay;
    }
  }

  /** What is known of the step that is running, of parallel ones the last. The next write shows it. */
  report(known: StepReport): void {
    const step = this.#steps.findLast(({ status }) => status === 'running');
    if (!step) return;
    // A copy follows the replay, in the same step.
    delete step.replay;
    Object.assign(step, known);
  }

  /** Writes the steps. @returns false if the job has already ended */
  async save(more: { attempts?: number; error?: JobError }): Promise<boolean> {
    const saved = hasChanged(await this.#write('running', more));
    this.#saved();
    return saved;
  }

  /** The job's last write, if `condition` is true; it joins the batch that records what the job did. */
  end(status: Extract<JobStatus, 'succeeded' | 'failed'>, condition?: SQL): Statement {
    this.stop();
    return this.#write(status, {}, condition);
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  #write(status: JobStatus, more: { attempts?: number; error?: JobError }, condition?: SQL) {
    return this.#db
      .update(jobs)
      .set({ ...more, status, steps: this.#steps, updatedAt: new Date() })
      .where(and(eq(jobs.id, this.#job.id), inArray(jobs.status, OPEN_STATUSES), condition));
  }
}

const UPGRADE_REQUIRED: HostFailureCode = 'HOST_UPGRADE_REQUIRED';
/** How many ends of jobs a runner remembers. */
const RECENT_ENDS = 200;

/** The end of a job: the response for its client, if its kind has one. */
export type JobEnd = Result<StoredResponse | null, Failure>;

interface JobRunnerOptions extends Omit<SagaContext, 'job' | 'callHost' | 'callHostOf' | 'report'> {
  /** Calls the host of a job: a project can have moved since its runner was made. */
  callHost: (hostId: string) => CallHost;
  sagas: SagaTable;
  /** Schedules another attempt (Unix milliseconds), even if this object is evicted before. */
  wakeAt: (timestamp: number) => void;
  /** Called when an attempt begins: the records of a new job were just written. */
  begun: (job: JobRow) => void;
  /** Called after each write of the job or its subject. */
  changed: (job: JobRow) => void;
  /** Called when a job that makes branches has ended. */
  created: (job: JobRow) => void;
}

/** The kinds of jobs that take one of the project's turns for creations. */
const CREATIONS: readonly JobKind[] = [
  'project.create',
  'branch.create',
  'branch.reset',
  'branch.restore',
  'snapshot.create',
  'change.undo',
];

/** The kinds of jobs that make branches, whose sizes nobody knows. */
const NEW_BRANCHES: readonly JobKind[] = ['project.create', 'branch.create'];

interface Run {
  isReading: boolean;
  branchIds: string[];
  done: Promise<JobEnd | null>;
}

/**
 * Runs the jobs of one project: each at most once at a time, jobs of the same branch one after another, and
 * three creations in parallel (specification 8). All state of a job is in D1, so an eviction loses nothing.
 */
export class JobRunner {
  readonly #options: JobRunnerOptions;
  readonly #runs = new Map<string, Run>();
  readonly #progress = new Map<string, JobProgress>();
  readonly #creations = new Turns(CONCURRENT_CREATIONS);
  readonly #ends = new Map<string, PromiseWithResolvers<JobEnd>>();
  /** By job. */
  readonly #ended = new BoundedMap<string, JobEnd>(RECENT_ENDS);

  constructor(options: JobRunnerOptions) {
    this.#options = options;
  }

  /** Waits for the job's end, over any number of attempts; null if it is still open after `milliseconds`. */
  async endOf(jobId: string, milliseconds: number): Promise<JobEnd | null> {
    const ended = this.#ended.get(jobId);
    if (ended) return ended;
    const end = this.#ends.get(jobId) ?? Promise.withResolvers<JobEnd>();
    this.#ends.set(jobId, end);
    const timeout = Promise.withResolvers<null>();
    const timer = setTimeout(() => timeout.resolve(null), milliseconds);
    try {
      return await Promise.race([end.promise, timeout.promise]);
    } finally {
      clearTimeout(timer);
    }
  }

  /**
   * Makes one attempt at a job that was just written, or joins the current one. Never throws.
   * @returns null if the job stays open
   */
  start(job: JobRow): Promise<JobEnd | null> {
    // An alarm can have resumed it before the reply of its write came.
    const ended = this.#ended.get(job.id);
    return ended ? Promise.resolve(ended) : this.#run(job, async () => job);
  }

  /**
   * As `start`, for a job that was read earlier. Its turn comes after newer work that followed its end, so it
   * is read again then.
   * @returns null also if the job had ended
   */
  resume(job: JobRow): Promise<JobEnd | null> {
    return this.#run(job, () => readOpenJob(this.#options.db, job.id));
  }

  #run(job: JobRow, current: () => Promise<JobRow | undefined>): Promise<JobEnd | null> {
    const run = this.#runs.get(job.id);
    if (run) return run.done;
    this.#options.begun(job);
    const done = traced(job.input.actor.traceparent, () => this.#attemptInTurn(job, current)).then((end) => {
      this.#runs.delete(job.id);
      if (end) {
        this.#ended.set(job.id, end);
        this.#ends.get(job.id)?.resolve(end);
        this.#ends.delete(job.id);
        if (NEW_BRANCHES.includes(job.kind)) this.#options.created(job);
      }
      this.#options.changed(job);
      return end;
    });
    this.#runs.set(job.id, { isReading: READINGS.includes(job.kind), branchIds: branchIdsOf(job), done });
    return done;
  }

  /** What the host reports of the job's running step. */
  report(jobId: string, known: StepReport): void {
    this.#progress.get(jobId)?.report(known);
  }

  async #attemptInTurn(job: JobRow, current: () => Promise<JobRow | undefined>): Promise<JobEnd | null> {
    const own = new Set(READINGS.includes(job.kind) ? [] : branchIdsOf(job));
    const sameBranch = ({ isReading, branchIds }: Run) =>
      !isReading && (job.kind === 'project.delete' || branchIds.some((id) => own.has(id)));
    await Promise.all([...this.#runs.values()].filter(sameBranch).map(({ done }) => done));
    const release = CREATIONS.includes(job.kind) ? await this.#creations.take() : () => {};
    const { db, changed } = this.#options;
    const progress = new JobProgress(db, job, this.#stepNames(job), () => changed(job));
    this.#progress.set(job.id, progress);
    try {
      const row = await current();
      return row ? await this.#attempt(Object.assign(job, row), progress) : null;
    } catch (error) {
      logEvent('job.attempt_failed', { job_id: job.id, kind: job.kind, ...jobError(error) });
      job.attempts += 1;
      this.#options.wakeAt(Date.now() + retryDelay(job.attempts));
      await progress.save({ attempts: job.attempts }).catch(() => {});
      return null;
    } finally {
      progress.stop();
      this.#progress.delete(job.id);
      release();
    }
  }

  #stepNames<K extends JobKind>(job: JobOf<K>): readonly string[] {
    const saga: Saga<K> = this.#options.sagas[job.kind];
    return saga.stepNames(job, this.#options.settings);
  }

  async #attempt<K extends JobKind>(job: JobOf<K>, progress: JobProgress): Promise<JobEnd> {
    const { db, settings, callHost, sagas } = this.#options;
    const saga: Saga<K> = sagas[job.kind];
    const report = (known: StepReport) => progress.report(known);
    const context = { db, settings, callHost: callHost(job.hostId), callHostOf: callHost, job, report };
    if (job.error === null) {
      try {
        return await this.#goForward(saga, context, progress);
      } catch (error) {
        const isFinal =
          failureClass(error) !== 'transient' || Date.now() - job.createdAt.getTime() > saga.patience(job);
        if (!saga.undo || !isFinal) throw error;
        job.error = jobError(error);
        // Once the failure is stored, every later attempt undoes. It cannot be stored if the job has
        // succeeded and only the reply of that write was lost: then there is nothing to undo.
        if (!(await progress.save({ error: job.error }))) throw error;
      }
    }
    return this.#goBack(saga, context, progress, job.error);
  }

  async #goForward<K extends JobKind>(
    saga: Saga<K>,
    context: SagaContext<K>,
    progress: JobProgress,
  ): Promise<JobEnd> {
    const attempt = await saga.attempt(context);
    if (attempt === null) throw new OvertakenError();
    for (const row of attempt.steps) {
      const outcomes = await Promise.allSettled(row.map(({ name, run }) => progress.during(name, run)));
      const reasons = outcomes.flatMap((outcome) => (outcome.status === 'rejected' ? [outcome.reason] : []));
      if (reasons.length > 0)
        throw reasons.find((reason) => failureClass(reason) !== 'transient') ?? reasons[0];
    }
    const now = new Date();
    const response = attempt.response(now);
    const { db, job } = context;
    const { completed } = attempt;
    const ofJob = and(eq(idempotencyKeys.jobId, job.id), completed);
    const [end] = await writeThenRead(
      db,
      [
        ...attempt.complete(now),
        ...(response ? [db.update(idempotencyKeys).set(response).where(ofJob)] : []),
        progress.end('succeeded', completed),
      ],
      db.select({ completed: sql<number>`${completed}` }).from(sql`(select 1)`),
    );
    if (!end?.completed) throw new OvertakenError();
    return ok(response);
  }

  async #goBack<K extends JobKind>(
    { undo }: Saga<K>,
    context: SagaContext<K>,
    progress: JobProgress,
    error: JobError,
  ): Promise<JobEnd> {
    const { db, job } = context;
    await undo?.run(context).catch((undoing) => {
      // An agent that does not know the operation has made nothing by it.
      if (jobError(undoing).code !== error.code || error.code !== UPGRADE_REQUIRED) throw undoing;
    });
    await inOneBatch(db, [
      ...(undo?.record(context, wasRefused(error), new Date()) ?? []),
      // Frees the key, so that the client can repeat the request with the same key.
      db.delete(idempotencyKeys).where(eq(idempotencyKeys.jobId, job.id)),
      progress.end('failed'),
    ]);
    const failure = publicFailure(error);
    return fail({ ...failure, fields: { ...failure.fields, job_id: job.id } });
  }
}
