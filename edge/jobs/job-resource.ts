import { z } from 'zod';
import { CREATED_BY } from '../../shared/branch/snapshot.ts';
import { FAILURES, type FailureCode } from '../../shared/failures.ts';
import {
  JOB_KINDS,
  JOB_STATUSES,
  type JobError,
  PROGRESS_TABLES_MAX,
  ReplayProgress,
  STEP_STATUSES,
  TableProgress,
} from '../../shared/project/job.ts';
import type { JobRow } from '../database/schema.ts';
import { publicFailure } from './saga.ts';

const Id = z.uuid();
const Timestamp = z.iso.datetime();

const Step = z.strictObject({
  name: z.string().meta({ example: 'clone' }),
  status: z.enum(STEP_STATUSES).meta({ example: 'succeeded' }),
  started_at: Timestamp.nullable(),
  finished_at: Timestamp.nullable(),
  percent: z.int().min(0).max(99).optional().meta({
    description: 'How much of it is done, as its host estimates. Only while it is running, and of long work.',
  }),
  tables: z.array(TableProgress).max(PROGRESS_TABLES_MAX).optional().meta({
    description:
      'Of an import: how far its tables are, those that are being copied first, then the largest. The rows of a table that is not copied yet are an estimate.',
  }),
  replay: ReplayProgress.optional().meta({
    description:
      'Of a recovery, while it replays the log of the database server: how much that is, how much is done, and about how long the rest takes.',
  }),
  created_by: z.enum(CREATED_BY).optional().meta({
    description: 'Of the clone of a branch: `spare` if the host had one ready.',
    example: 'spare',
  }),
  warnings: z.array(z.string()).optional().meta({ description: 'What was left out of an import.' }),
});

/** A job as the API shows it, without its input. */
export const Job = z
  .strictObject({
    id: Id,
    project_id: Id,
    branch_id: Id.nullable().meta({
      description: 'Null: the job is about the whole project, or about a batch of branches.',
    }),
    kind: z.enum(JOB_KINDS).meta({ example: 'branch.create' }),
    status: z.enum(JOB_STATUSES).meta({ example: 'succeeded' }),
    steps: z.array(Step).meta({ description: 'Empty until the job runs.' }),
    error: z.strictObject({ code: z.string(), message: z.string() }).nullable().meta({ example: null }),
    attempts: z.int().min(0).meta({ description: 'Failed attempts so far.' }),
    created_at: Timestamp,
    updated_at: Timestamp,
  })
  .meta({ id: 'Job' });

/** The failure as the API reports it; the internal cause is for the log. */
export function toErrorResponse(error: JobError): { code: FailureCode; message: string } {
  const { code, fields } = publicFailure(error);
  return { code, message: typeof fields?.message === 'string' ? fields.message : FAILURES[code].message };
}

export const toJobResponse = (row: JobRow): z.output<typeof Job> => ({
  id: row.id,
  project_id: row.projectId,
  branch_id: row.branchId,
  kind: row.kind,
  status: row.status,
  steps: row.steps,
  error: row.error && toErrorResponse(row.error),
  attempts: row.attempts,
  created_at: row.createdAt.toISOString(),
  updated_at: row.updatedAt.toISOString(),
});
