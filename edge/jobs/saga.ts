import type { SQL } from 'drizzle-orm';
import type { JobKind } from '../../shared/project/job.ts';
import type { Database, Statement } from '../database/database.ts';
import type { jobs } from '../database/schema.ts';
import type { CallHost } from '../hosts/host-client.ts';
import type { Settings } from '../settings.ts';

export type JobRow = typeof jobs.$inferSelect;

export interface SagaContext {
  job: JobRow;
  db: Database;
  settings: Settings;
  callHost: CallHost;
}

/** The answer a client of the job gets, kept under its `Idempotency-Key`. */
export interface JobResponse {
  status: number;
  body: Record<string, unknown>;
}

interface Step<Subject> {
  name: string;
  run: (context: SagaContext, subject: Subject) => Promise<unknown>;
}

/**
 * How one kind of job is done. Every step is idempotent, so a job that was interrupted anywhere is simply
 * run again from its first step: what is there is confirmed, what is missing is made.
 */
export interface Saga<Subject> {
  /** Steps in order; those of one row run side by side. */
  steps: readonly (readonly Step<Subject>[])[];
  /** What the job is about, read anew at each attempt; null when a deletion has overtaken it. */
  load: (context: SagaContext) => Promise<Subject | null>;
  /** What records the success, in one batch with the job's own end. */
  complete: (context: SagaContext, subject: Subject, now: Date) => Statement[];
  /** Holds in the records once `complete` took effect: a deletion can still overtake the job's last step. */
  completed?: (subject: Subject) => SQL;
  /** The client's answer, when a client waits for the job. */
  response?: (subject: Subject) => JobResponse;
  /** Only for jobs that may fail; a job without it is tried until it succeeds. */
  undo?: {
    /** Removes what the steps made; repeated until it succeeds. */
    run: (context: SagaContext) => Promise<unknown>;
    /** @param refused nothing was made for good: no record is to stay */
    record: (context: SagaContext, refused: boolean, now: Date) => Statement[];
  };
}

/** Sagas of all kinds in one table: the runner hands each its own subject and never looks into it. */
export type AnySaga = Saga<unknown>;
export type SagaTable = Record<JobKind, AnySaga>;
export const saga = <Subject>(definition: Saga<Subject>): AnySaga => definition as AnySaga;
