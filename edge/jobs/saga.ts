import type { SQL } from 'drizzle-orm';
import { backoff } from '../../shared/backoff.ts';
import type { Failure } from '../../shared/failures.ts';
import type { JobError, JobKind } from '../../shared/project/job.ts';
import {
  HOST_FAILURES,
  type HostFailureClass,
  type HostFailureCode,
} from '../../shared/protocol/host-failures.ts';
import { type Database, type Statement, withoutValues } from '../database/database.ts';
import type { JobRow } from '../database/schema.ts';
import { type CallHost, failureOfOwnCall, HostCallError } from '../hosts/host-client.ts';
import type { StoredResponse } from '../idempotency/idempotency-key.ts';
import type { Settings } from '../settings.ts';

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
 * The steps of one kind of job. Every step is idempotent, so an interrupted job runs again from its first
 * step, which confirms what exists and makes what is missing.
 */
export interface Saga<Subject> {
  /** Steps in order; the steps of one row run in parallel. */
  steps: readonly (readonly Step<Subject>[])[];
  /** Reads the subject of the job at each attempt; null if it was deleted meanwhile. */
  load: (context: SagaContext) => Promise<Subject | null>;
  /** The statements that record the success, in one batch with the end of the job. */
  complete: (context: SagaContext, subject: Subject, now: Date) => Statement[];
  /**
   * True in the records once `complete` took effect: a deletion can still come before the job's last step.
   */
  completed?: (subject: Subject) => SQL;
  /** The response for a client that waits for the job. @param now the same as for `complete` */
  response?: (subject: Subject, now: Date, job: JobRow) => StoredResponse;
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

/** The subject of the job was deleted, or its project was, while the job waited. */
export class OvertakenError extends Error {
  constructor() {
    super('the subject of the job was deleted meanwhile');
    this.name = 'OvertakenError';
  }
}

const OVERTAKEN = 'OVERTAKEN';

/** A job that has not succeeded after this time is abandoned and undone. */
export const ABANDON_AFTER_MS = 15 * 60_000;

const isHostFailure = (code: string): code is HostFailureCode => Object.hasOwn(HOST_FAILURES, code);

/** The failure as the API reports it. */
export function publicFailure({ code, message }: JobError): Failure {
  if (code === OVERTAKEN) return { code: 'NOT_FOUND', reason: message };
  return failureOfOwnCall({ code: isHostFailure(code) ? code : 'INTERNAL', message });
}

/** An error that is not the host's (D1 is unavailable, a defect) may pass: a retry loses nothing. */
export function failureClass(error: unknown): HostFailureClass {
  if (error instanceof HostCallError) return HOST_FAILURES[error.code];
  return error instanceof OvertakenError ? 'permanent' : 'transient';
}

export function jobError(error: unknown): JobError {
  const message = error instanceof Error ? withoutValues(error).message : 'unknown error';
  if (error instanceof HostCallError) return { code: error.code, message };
  return { code: error instanceof OvertakenError ? OVERTAKEN : 'INTERNAL', message };
}

/** Whether the host refused the job: nothing was made permanently, so no record stays. */
export const wasRefused = ({ code }: JobError): boolean =>
  isHostFailure(code) && HOST_FAILURES[code] === 'refused';

const RETRY_FIRST_MS = 250;
/**
 * Below the thirty seconds within which work resumes after a fault, with time left for the attempt itself.
 */
const RETRY_LONGEST_MS = 20_000;

/**
 * Milliseconds until the next attempt after `attempts` failed ones. A host that links starts it immediately.
 */
export const retryDelay = (attempts: number): number =>
  backoff(attempts, { first: RETRY_FIRST_MS, longest: RETRY_LONGEST_MS });
