import { and, eq, inArray, type SQL } from 'drizzle-orm';
import type { JobError, JobStatus, JobStep } from '../../shared/project/job.ts';
import { type Database, hasChanged, type Statement } from '../database/database.ts';
import { jobs } from '../database/schema.ts';
import { type JobRow, OPEN_STATUSES } from './job-store.ts';
import type { AnySaga } from './saga.ts';

/** A job that ends sooner writes to D1 only once, at its end. */
const SHOW_PROGRESS_EVERY_MS = 1_000;

const pendingSteps = (definition: AnySaga): JobStep[] =>
  definition.steps
    .flat()
    .map(({ name }) => ({ name, status: 'pending', started_at: null, finished_at: null }));

/** The steps of one attempt at a job, and their record in D1. */
export class JobProgress {
  readonly #db: Database;
  readonly #job: JobRow;
  readonly #steps: JobStep[];
  readonly #saved: () => void;
  readonly #timer: ReturnType<typeof setInterval>;

  /** @param saved called after the steps were written */
  constructor(db: Database, job: JobRow, definition: AnySaga, saved: () => void) {
    this.#db = db;
    this.#saved = saved;
    this.#job = job;
    this.#steps = pendingSteps(definition);
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
    }
  }

  /** How much is done of the step that is running, of parallel ones the last. The next write shows it. */
  report(percent: number): void {
    const step = this.#steps.findLast(({ status }) => status === 'running');
    if (step) step.percent = percent;
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
