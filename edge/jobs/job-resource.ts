import { z } from 'zod';
import { FAILURES, type FailureCode } from '../../shared/failures.ts';
import { JOB_KINDS, JOB_STATUSES, STEP_STATUSES } from '../../shared/project/job.ts';
import { publicFailure } from './job-failure.ts';
import type { JobRow } from './saga.ts';

const Id = z.uuid();
const Moment = z.iso.datetime();

const Step = z.strictObject({
  name: z.string().meta({ example: 'clone' }),
  status: z.enum(STEP_STATUSES).meta({ example: 'succeeded' }),
  started_at: Moment.nullable(),
  finished_at: Moment.nullable(),
});

/** A job as the API shows it; its input stays inside. */
export const Job = z
  .strictObject({
    id: Id,
    project_id: Id,
    branch_id: Id.nullable(),
    kind: z.enum(JOB_KINDS).meta({ example: 'branch.create' }),
    status: z.enum(JOB_STATUSES).meta({ example: 'succeeded' }),
    steps: z.array(Step).meta({ description: 'Empty until the job runs.' }),
    error: z.strictObject({ code: z.string(), message: z.string() }).nullable().meta({ example: null }),
    attempts: z.int().min(0),
    created_at: Moment,
    updated_at: Moment,
  })
  .meta({ id: 'Job' });

/** The failure in the words of the API; what really happened is for the log. */
function publicError({ id, error }: JobRow): { code: FailureCode; message: string } {
  const { code } = publicFailure(error ?? { code: '', message: '' }, id);
  return { code, message: FAILURES[code].message };
}

export const toJobResponse = (row: JobRow): z.output<typeof Job> => ({
  id: row.id,
  project_id: row.projectId,
  branch_id: row.branchId,
  kind: row.kind,
  status: row.status,
  steps: row.steps,
  error: row.error && publicError(row),
  attempts: row.attempts,
  created_at: row.createdAt.toISOString(),
  updated_at: row.updatedAt.toISOString(),
});
