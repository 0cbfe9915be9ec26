import { backoff } from '../../shared/backoff.ts';
import type { Failure, FailureCode } from '../../shared/failures.ts';
import type { JobError } from '../../shared/project/job.ts';
import {
  HOST_FAILURES,
  type HostFailureClass,
  type HostFailureCode,
} from '../../shared/protocol/host-failures.ts';
import { withoutValues } from '../database/query-error.ts';
import { HostCallError } from '../hosts/host-client.ts';

/** What a job was about is gone: the branch or its project was deleted while the job waited. */
export class OvertakenError extends Error {
  constructor() {
    super('what the job was to make was deleted meanwhile');
    this.name = 'OvertakenError';
  }
}

/** Failures of the host that a client is told under a code of their own; any other is `HOST_UNAVAILABLE`. */
const TOLD_TO_CLIENTS: Partial<Record<string, FailureCode>> = {
  SOURCE_BUSY: 'SOURCE_BUSY',
  SOURCE_MISSING: 'SOURCE_NOT_ACTIVE',
  HOST_TIMEOUT: 'HOST_TIMEOUT',
  OVERTAKEN: 'NOT_FOUND',
} satisfies Partial<Record<HostFailureCode | 'OVERTAKEN', FailureCode>>;

export const publicFailure = (error: JobError, jobId: string): Failure => ({
  code: TOLD_TO_CLIENTS[error.code] ?? 'HOST_UNAVAILABLE',
  fields: { job_id: jobId },
});

/** An error that is not the host's (D1 away, a bug) may pass: nothing is lost by trying again. */
export function failureClass(error: unknown): HostFailureClass {
  if (error instanceof HostCallError) return HOST_FAILURES[error.code];
  return error instanceof OvertakenError ? 'permanent' : 'transient';
}

export function jobError(error: unknown): JobError {
  const message = error instanceof Error ? withoutValues(error).message : 'unknown error';
  if (error instanceof HostCallError) return { code: error.code, message };
  return { code: error instanceof OvertakenError ? 'OVERTAKEN' : 'INTERNAL', message };
}

/** Nothing was made for good when the host refused, so no record is to stay. */
export const wasRefused = ({ code }: JobError): boolean =>
  Object.hasOwn(HOST_FAILURES, code) && HOST_FAILURES[code as HostFailureCode] === 'refused';

const RETRY_FIRST_MS = 250;
/** Within the thirty seconds promised after a fault, with room for the attempt itself. */
const RETRY_LONGEST_MS = 20_000;

/** Milliseconds until the next attempt after `attempts` failed ones; a host that links up does not wait for it. */
export const retryDelay = (attempts: number): number =>
  backoff(attempts, { first: RETRY_FIRST_MS, longest: RETRY_LONGEST_MS });
