import { eq } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { IdempotencyHeader } from '../api/idempotency-key.ts';
import { response } from '../api/operation.ts';
import { type AppContext, databaseOf } from '../app-env.ts';
import { jobs } from '../database/schema.ts';
import { ApiError } from '../errors.ts';
import { Job, toJobResponse } from '../jobs/job-resource.ts';
import type { CreationOutcome } from '../projects/coordinator.ts';
import { found } from '../projects/project-access.ts';

/** How long a client waits for a creation at most; then it gets 202 and the job. */
const WAIT_MAX_SECONDS = 60;

/** Per RFC 7240, preferences are never rejected and unknown ones are ignored. */
const Prefer = z
  .string()
  .default('')
  .transform((text) => {
    const asked = /(?:^|[,;\s])wait=(\d{1,9})(?:$|[,;\s])/i.exec(text)?.[1];
    return Math.min(Number(asked ?? WAIT_MAX_SECONDS), WAIT_MAX_SECONDS) * 1000;
  })
  .meta({
    description: `\`wait=N\`: the number of seconds to wait for completion, 0 to ${WAIT_MAX_SECONDS}. A request that takes longer returns 202 with its job.`,
    example: 'wait=10',
  });

/** Headers of a creation. */
export const CreationHeaders = IdempotencyHeader.extend({ prefer: Prefer });

export const PENDING = response('Still in progress; poll this job.', Job);

/** @throws ApiError the failure, if it is one */
export function succeeded<T extends object>(outcome: T | { failure: Failure }): T {
  if ('failure' in outcome) throw ApiError.of(outcome.failure);
  return outcome;
}

/** The answer to a creation: what was made, as `Made` describes it, or the job that goes on making it. */
export async function creationResponse<Made>(c: AppContext, outcome: CreationOutcome) {
  const ended = succeeded<Exclude<CreationOutcome, { failure: Failure }>>(outcome);
  if ('response' in ended) return c.json(ended.response.body as Made, 201);
  const job = found(await databaseOf(c).select().from(jobs).where(eq(jobs.id, ended.pending)));
  return c.json(toJobResponse(job), 202);
}
