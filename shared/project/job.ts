export const JOB_KINDS = [
  'project.create',
  'branch.create',
  'branch.create_batch',
  'branch.delete',
  'branch.reset',
  'branch.restore',
  'branch.diff',
  'snapshot.create',
  'snapshot.delete',
  'project.delete',
] as const;
export type JobKind = (typeof JOB_KINDS)[number];

export const JOB_STATUSES = ['queued', 'running', 'succeeded', 'failed'] as const;
export type JobStatus = (typeof JOB_STATUSES)[number];

export const STEP_STATUSES = ['pending', 'running', 'succeeded', 'failed'] as const;

/** One step of a job in `GET /api/v1/jobs/:job_id`. Times are ISO 8601 UTC. */
export interface JobStep {
  name: string;
  status: (typeof STEP_STATUSES)[number];
  started_at: string | null;
  finished_at: string | null;
  /** How much of it is done, while it is running and if its host reports it. */
  percent?: number;
}

/** Why a job failed. `code` is a failure code of the API or of the host. */
export interface JobError {
  code: string;
  message: string;
}
