import { eq } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import type { Result } from '../../shared/result.ts';
import { type idempotencyKeys, jobs } from '../database/schema.ts';
import { found, unwrap } from '../errors.ts';
import {
  type CreationProgress,
  IdempotencyHeader,
  type KeyUse,
  recordedResponse,
  type StoredResponse,
} from '../idempotency/idempotency-key.ts';
import { Job, toJobResponse } from '../jobs/job-resource.ts';
import type { AppContext } from '../pipeline/context.ts';
import { response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';

/** How long a client waits for a creation at most; then it gets 202 and the job. */
export const WAIT_MAX_SECONDS = 60;

/** Per RFC 7240, preferences are never rejected and unknown ones are ignored. */
const Prefer = z
  .string()
  .default('')
  .transform((text) => {
    const seconds = /(?:^|[,;\s])wait=(\d{1,9})(?:$|[,;\s])/i.exec(text)?.[1];
    return Math.min(Number(seconds ?? WAIT_MAX_SECONDS), WAIT_MAX_SECONDS) * 1000;
  })
  .meta({
    description: `\`wait=N\`: the number of seconds to wait for completion, 0 to ${WAIT_MAX_SECONDS}. A request that takes longer returns 202 with its job.`,
    example: 'wait=10',
  });

export const CreationHeaders = IdempotencyHeader.extend({ prefer: Prefer });

export const PENDING = response('Still in progress; poll this job.', Job);

/** The failures of a host that does work for the gateway. */
export const HOST_WORK_FAILURES = [
  'HOST_BUSY',
  'HOST_FULL',
  'COLLATION_OUTDATED',
  'HOST_UNAVAILABLE',
  'HOST_UPGRADE_REQUIRED',
  'HOST_TIMEOUT',
  'DATABASE_SERVER_UNAVAILABLE',
  'RULES_NOT_APPLIED',
] as const;

/** The failures of a host that creates a database. */
export const HOST_CREATION_FAILURES = [...HOST_WORK_FAILURES, 'DATABASE_NAME_HELD', 'PROOF_FAILED'] as const;

/** How a creation ended for its client: with what was made, or with the job that is still running. */
type End = StoredResponse | { job: z.output<typeof Job> };

/**
 * The response to the first request with the key; null if this is the first request.
 * @throws ApiError IDEMPOTENCY_KEY_REUSED, IDEMPOTENCY_IN_FLIGHT
 */
export function replay(
  c: AppContext,
  uses: readonly (typeof idempotencyKeys.$inferSelect)[],
  keyUse: KeyUse | null,
): StoredResponse | null {
  const recorded = unwrap(recordedResponse(uses, keyUse));
  if (recorded) c.header('Idempotency-Replayed', 'true');
  return recorded;
}

export async function endOfCreation(c: AppContext, outcome: Result<CreationProgress, Failure>): Promise<End> {
  const progress = unwrap(outcome);
  if (progress.response) return progress.response;
  const job = found(await databaseOf(c).select().from(jobs).where(eq(jobs.id, progress.jobId)));
  return { job: toJobResponse(job) };
}

/** The response to a creation, as `Made` describes what was created. */
export async function creationResponse<Made>(c: AppContext, outcome: Result<CreationProgress, Failure>) {
  const end = await endOfCreation(c, outcome);
  return 'job' in end ? c.json(end.job, 202) : c.json(end.body as Made, 201);
}
