import { z } from 'zod';
import type { CreatedBy } from '../branch/snapshot.ts';

export const JOB_KINDS = [
  'project.create',
  'branch.create',
  'branch.delete',
  'branch.reset',
  'branch.restore',
  'branch.rename',
  'branch.diff',
  'branch.try',
  'change.rehearse',
  'change.apply',
  'change.undo',
  'branch.import',
  'follow.start',
  'follow.cutover',
  'follow.stop',
  'snapshot.create',
  'snapshot.delete',
  'project.delete',
  'project.move',
] as const;
export type JobKind = (typeof JOB_KINDS)[number];

export const JOB_STATUSES = ['queued', 'running', 'succeeded', 'failed'] as const;
export type JobStatus = (typeof JOB_STATUSES)[number];

export const STEP_STATUSES = ['pending', 'running', 'succeeded', 'failed'] as const;

/** Tables whose progress a job shows. */
export const PROGRESS_TABLES_MAX = 30;

/** How far the copy of a table is. */
export const TableProgress = z.strictObject({
  schema: z.string(),
  table: z.string(),
  state: z.enum(['waiting', 'copying', 'copied']),
  /** Of the source; an estimate until the table is copied. */
  rows: z.int().nonnegative(),
  percent: z.int().min(0).max(100),
});
export type TableProgress = z.output<typeof TableProgress>;

/** How far a recovery has replayed the WAL. The end is an estimate. */
export const ReplayProgress = z.strictObject({
  /** All bytes that are to be replayed. */
  bytes: z.int().nonnegative(),
  replayed_bytes: z.int().nonnegative(),
  /** Null: not known yet. */
  seconds_left: z.int().nonnegative().nullable(),
});
export type ReplayProgress = z.output<typeof ReplayProgress>;

/** One step of a job in `GET /api/v1/jobs/:job_id`. Times are ISO 8601 UTC. */
export interface JobStep {
  name: string;
  status: (typeof STEP_STATUSES)[number];
  started_at: string | null;
  finished_at: string | null;
  /** How much of it is done, while it is running and if its host reports it. */
  percent?: number;
  /** Of a copy: how far its tables are. */
  tables?: TableProgress[];
  /** The progress of a recovery, while it replays the WAL. */
  replay?: ReplayProgress;
  /** Of a copy: what was left out. */
  warnings?: string[];
  /** Of a clone. */
  created_by?: CreatedBy;
}

/** Why a job failed. `code` is a failure code of the API or of the host. */
export interface JobError {
  code: string;
  message: string;
}
