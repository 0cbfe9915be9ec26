import { type SQL, sql } from 'drizzle-orm';
import { backoff } from '../../shared/backoff.ts';
import { FAILURES, type Failure } from '../../shared/failures.ts';
import type { JobError, JobKind, JobStep } from '../../shared/project/job.ts';
import {
  HOST_FAILURES,
  type HostFailureClass,
  type HostFailureCode,
} from '../../shared/protocol/host-failures.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import type { SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import { type Database, type Statement, withoutValues } from '../database/database.ts';
import type { JobOf } from '../database/schema.ts';
import { type CallHost, failureOfOwnCall, HostCallError } from '../hosts/host-client.ts';
import type { StoredResponse } from '../idempotency/idempotency-key.ts';
import type { Settings } from '../settings.ts';

export interface SagaContext<K extends JobKind = JobKind> {
  job: JobOf<K>;
  db: Database;
  settings: Settings;
  /** Of the job. */
  callHost: CallHost;
  callHostOf: (hostId: string) => CallHost;
  /** Shows what is known of the step that is running. */
  report: (known: StepReport) => void;
}

/** What a step shows beside its state. */
export type StepReport = Pick<JobStep, 'percent' | 'tables' | 'replay' | 'warnings' | 'created_by'>;

/**
 * The steps of jobs of the kinds `K`. Every step is idempotent, so an interrupted job runs again from its
 * first step, which confirms what exists and makes what is missing.
 */
interface Definition<K extends JobKind, Subject> {
  /** Steps in order; the steps of one row run in parallel. */
  steps: readonly (readonly Step<K, Subject>[])[];
  /** How long the job is retried, in milliseconds; left out: `ABANDON_AFTER_MS`. */
  patience?: (job: JobOf<K>) => number;
  /** Reads the subject of the job at each attempt; null if it was deleted meanwhile. */
  load: (context: SagaContext<K>) => Promise<Subject | null>;
  /** The statements that record the success, in one batch with the end of the job. */
  complete: (context: SagaContext<K>, subject: Subject, now: Date) => Statement[];
  /**
   * True in the records once `complete` took effect: a deletion can still come before the job's last step.
   */
  completed?: (subject: Subject) => SQL;
  /** The response for a client that waits for the job. @param now the same as for `complete` */
  response?: (subject: Subject, now: Date, job: JobOf<K>) => StoredResponse;
  undo?: Undo<K>;
}

export interface Step<K extends JobKind, Subject> {
  name: string;
  /** Left out: every job of the kind has the step. */
  when?: (job: JobOf<K>, settings: Settings) => boolean;
  run: (context: SagaContext<K>, subject: Subject) => Promise<unknown>;
}

/** Only for jobs that may fail; a job without it is retried until it succeeds. */
export interface Undo<K extends JobKind> {
  /** Removes what the steps made; retried until it succeeds. */
  run: (context: SagaContext<K>) => Promise<unknown>;
  /** @param refused nothing was made permanently, so every record is removed */
  record: (context: SagaContext<K>, refused: boolean, now: Date) => Statement[];
}

/** One attempt at a job, with the subject as it was just read. */
interface Attempt {
  steps: readonly (readonly { name: string; run: () => Promise<unknown> }[])[];
  complete: (now: Date) => Statement[];
  completed: SQL;
  response: (now: Date) => StoredResponse | null;
}

/** What the runner knows of a saga: its subject stays inside. */
export interface Saga<K extends JobKind> {
  stepNames: (job: JobOf<K>, settings: Settings) => readonly string[];
  patience: (job: JobOf<K>) => number;
  /** Null if the subject was deleted meanwhile. */
  attempt: (context: SagaContext<K>) => Promise<Attempt | null>;
  undo: Undo<K> | undefined;
}

const stepsOf = <K extends JobKind, Subject>(
  steps: Definition<K, Subject>['steps'],
  job: JobOf<K>,
  settings: Settings,
) => steps.map((row) => row.filter(({ when = () => true }) => when(job, settings)));

export type SagaTable = { [K in JobKind]: Saga<K> };

export const saga = <K extends JobKind, Subject>({
  steps,
  patience = () => ABANDON_AFTER_MS,
  load,
  complete,
  completed,
  response,
  undo,
}: Definition<K, Subject>): Saga<K> => ({
  stepNames: (job, settings) => stepsOf(steps, job, settings).flatMap((row) => row.map(({ name }) => name)),
  patience,
  attempt: async (context) => {
    const subject = await load(context);
    if (subject === null) return null;
    return {
      steps: stepsOf(steps, context.job, context.settings).map((row) =>
        row.map(({ name, run }) => ({ name, run: () => run(context, subject) })),
      ),
      complete: (now) => complete(context, subject, now),
      completed: completed?.(subject) ?? sql`true`,
      response: (now) => response?.(subject, now, context.job) ?? null,
    };
  },
  undo,
});

/** The subject of the job was deleted, or its project was, while the job waited. */
export class OvertakenError extends Error {
  constructor() {
    super('the subject of the job was deleted meanwhile');
    this.name = 'OvertakenError';
  }
}

const OVERTAKEN = 'OVERTAKEN';

/** Columns without a rule, and what is wrong with a rule; `column` is null for a whole table. */
type MaskingProblem = MethodResult<'snapshot.mask'>['problems'][number];

/** The policy does not cover the branch, so nothing was masked. */
export class MaskingIncompleteError extends Error {
  readonly problems: readonly MaskingProblem[];

  /** @param reason if it is about no column */
  constructor(problems: readonly MaskingProblem[], reason = '') {
    super(JSON.stringify({ reason, columns: problems }));
    this.name = 'MaskingIncompleteError';
    this.problems = problems;
  }
}

const UNRECOVERABLE = 'TIME_NOT_RECOVERABLE';

/** The times that a host can recover; nulls: none. */
type RecoveryWindow = MethodResult<'past.recover'>['window'];

/** The time of a recovery is outside of what the host keeps, so nothing was made. */
export class TimeNotRecoverableError extends Error {
  constructor(window: RecoveryWindow) {
    super(JSON.stringify(window));
    this.name = 'TimeNotRecoverableError';
  }
}

const UNSUITABLE = 'SOURCE_UNSUITABLE';
/** A client has cancelled the job. */
export const CANCELLED = 'JOB_CANCELLED';

/** The attempt ends, and the job is undone. */
export class JobCancelledError extends Error {}

/** A change stopped before its end. Its record says where, and why. */
export class ChangeStoppedError extends Error {}

/** A source elsewhere cannot be copied. Its message is public: it says everything that is wrong. */
export class SourceUnsuitableError extends Error {}

/** A host was away for too long, so the job is undone. It can be begun again when the host is back. */
export class HostLostError extends Error {}

const STOPPED = 'CHANGE_STOPPED';
const INCOMPLETE = 'MASKING_INCOMPLETE';
const COLUMNS_NAMED = 5;

/** The columns are part of the message, because a job shows that alone. */
function maskingFailure(text: string): Failure {
  const { reason, columns } = JSON.parse(text) as { reason: string; columns: MaskingProblem[] };
  const named = columns
    .slice(0, COLUMNS_NAMED)
    .map(({ table, column, reason }) => `${column === null ? table : `${table}.${column}`} (${reason})`);
  const more = columns.length - named.length;
  const about = [reason, ...named, ...(more > 0 ? [`${more} more`] : [])].filter(Boolean).join('; ');
  return { code: INCOMPLETE, fields: { message: `${FAILURES[INCOMPLETE].message} ${about}`, columns } };
}

/** A job that has not succeeded after this time is abandoned and undone. */
export const ABANDON_AFTER_MS = 15 * 60_000;

/** The same for one that writes a whole database again. */
export const MASKING_WITHIN_MS = 6 * 3_600_000;

const isHostFailure = (code: string): code is HostFailureCode => Object.hasOwn(HOST_FAILURES, code);

/** The one reason that a job stores, in the form of those that a check of a source lists. */
const unsuitable = (message: string): SourceFinding => ({
  problem: 'schema',
  severity: 'error',
  path: '',
  message,
  object: null,
  statement: null,
});

/** The failure as the API reports it. */
export function publicFailure({ code, message }: JobError): Failure {
  if (code === INCOMPLETE) return maskingFailure(message);
  if (code === UNRECOVERABLE) return { code, fields: JSON.parse(message) };
  if (code === UNSUITABLE) return { code, fields: { message, details: [unsuitable(message)] } };
  if (code === CANCELLED || code === STOPPED) return { code };
  if (code === OVERTAKEN) return { code: 'NOT_FOUND', reason: message };
  return failureOfOwnCall({ code: isHostFailure(code) ? code : 'INTERNAL', message });
}

/** An error that is not the host's (D1 is unavailable, a defect) may pass: a retry loses nothing. */
export function failureClass(error: unknown): HostFailureClass {
  if (error instanceof HostCallError) return HOST_FAILURES[error.code];
  if (error instanceof MaskingIncompleteError || error instanceof SourceUnsuitableError) return 'refused';
  if (error instanceof JobCancelledError || error instanceof ChangeStoppedError) return 'refused';
  if (error instanceof TimeNotRecoverableError) return 'refused';
  return error instanceof OvertakenError || error instanceof HostLostError ? 'permanent' : 'transient';
}

export function jobError(error: unknown): JobError {
  const message = error instanceof Error ? withoutValues(error).message : 'unknown error';
  if (error instanceof HostCallError) return { code: error.code, message };
  if (error instanceof MaskingIncompleteError) return { code: INCOMPLETE, message };
  if (error instanceof TimeNotRecoverableError) return { code: UNRECOVERABLE, message };
  if (error instanceof SourceUnsuitableError) return { code: UNSUITABLE, message };
  if (error instanceof JobCancelledError) return { code: CANCELLED, message };
  if (error instanceof ChangeStoppedError) return { code: STOPPED, message };
  if (error instanceof HostLostError) return { code: 'HOST_UNAVAILABLE', message };
  return { code: error instanceof OvertakenError ? OVERTAKEN : 'INTERNAL', message };
}

/** Whether the host refused the job: nothing was made permanently, so no record stays. */
export const wasRefused = ({ code }: JobError): boolean =>
  code === INCOMPLETE || code === UNRECOVERABLE || (isHostFailure(code) && HOST_FAILURES[code] === 'refused');

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
