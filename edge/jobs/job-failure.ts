import { backoff } from '../../shared/backoff.ts';
import type { Failure } from '../../shared/failures.ts';
import type { JobError } from '../../shared/project/job.ts';
import {
  HOST_FAILURES,
  type HostFailureClass,
  type HostFailureCode,
} from '../../shared/protocol/host-failures.ts';
import { withoutValues } from '../database/query-error.ts';
import { HostCallError } from '../hosts/host-client.ts';
import { failureOfOwnCall } from '../hosts/host-failure-table.ts';

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
/** Below the thirty seconds within which work resumes after a fault, with time left for the attempt itself. */
const RETRY_LONGEST_MS = 20_000;

/** Milliseconds until the next attempt after `attempts` failed ones. A host that links starts it immediately. */
export const retryDelay = (attempts: number): number =>
  backoff(attempts, { first: RETRY_FIRST_MS, longest: RETRY_LONGEST_MS });
