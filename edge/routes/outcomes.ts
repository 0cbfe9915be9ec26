import { eq } from 'drizzle-orm';
import type { Failure } from '../../shared/failure/failures.ts';
import { type AppContext, databaseOf } from '../app-env.ts';
import { jobs } from '../database/schema.ts';
import { ApiError } from '../errors.ts';
import { jobRecord } from '../jobs/job-record.ts';
import type { OrderOutcome } from '../projects/coordinator.ts';
import { found } from '../projects/project-access.ts';

/** How long a client waits for a creation; then it gets 202 and the job. */
export const ORDER_WAIT_MS = 60_000;

/** @throws ApiError the failure, if it is one */
export function succeeded<T extends object>(outcome: T | { failure: Failure }): T {
  if ('failure' in outcome) throw ApiError.of(outcome.failure);
  return outcome;
}

/** The answer to a creation: what was made, or the job that goes on making it. */
export async function orderResponse(context: AppContext, outcome: OrderOutcome): Promise<Response> {
  const ended = succeeded<Exclude<OrderOutcome, { failure: Failure }>>(outcome);
  if ('response' in ended) return Response.json(ended.response.body, { status: ended.response.status });
  const job = found(await databaseOf(context).select().from(jobs).where(eq(jobs.id, ended.pending)));
  return context.json(jobRecord(job), 202);
}
