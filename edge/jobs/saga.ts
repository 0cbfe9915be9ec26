import type { SQL } from 'drizzle-orm';
import type { JobKind } from '../../shared/project/job.ts';
import type { StoredResponse } from '../api/idempotency-key.ts';
import type { Database, Statement } from '../database/database.ts';
import type { CallHost } from '../hosts/host-client.ts';
import type { Settings } from '../settings.ts';
import type { JobRow } from './job-store.ts';

export interface SagaContext {
  job: JobRow;
  db: Database;
  settings: Settings;
  callHost: CallHost;
}

interface Step<Subject> {
  name: string;
  run: (context: SagaContext, subject: Subject) => Promise<unknown>;
}

/**
 * The steps of one kind of job. Every step is idempotent, so an interrupted job runs again from its first step, which
 * confirms what exists and makes what is missing.
 */
export interface Saga<Subject> {
  /** Steps in order; the steps of one row run in parallel. */
  steps: readonly (readonly Step<Subject>[])[];
  /** Reads the subject of the job at each attempt; null if it was deleted meanwhile. */
  load: (context: SagaContext) => Promise<Subject | null>;
  /** The statements that record the success, in one batch with the end of the job. */
  complete: (context: SagaContext, subject: Subject, now: Date) => Statement[];
  /** True in the records once `complete` took effect: a deletion can still come before the job's last step. */
  completed?: (subject: Subject) => SQL;
  /** The response for a client that waits for the job. @param now the same as for `complete` */
  response?: (subject: Subject, now: Date) => StoredResponse;
  /** Only for jobs that may fail; a job without it is retried until it succeeds. */
  undo?: {
    /** Removes what the steps made; retried until it succeeds. */
    run: (context: SagaContext) => Promise<unknown>;
    /** @param refused nothing was made permanently, so every record is removed */
    record: (context: SagaContext, refused: boolean, now: Date) => Statement[];
  };
}

/** Any kind of saga: the runner passes each its own subject and never inspects it. */
export type AnySaga = Saga<unknown>;
export type SagaTable = Record<JobKind, AnySaga>;
export const saga = <Subject>(definition: Saga<Subject>): AnySaga => definition as AnySaga;
