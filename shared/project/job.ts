export const JOB_KINDS = ['project.create', 'branch.create', 'branch.delete', 'project.delete'] as const;
export type JobKind = (typeof JOB_KINDS)[number];

export const JOB_STATUSES = ['queued', 'running', 'succeeded', 'failed'] as const;
export type JobStatus = (typeof JOB_STATUSES)[number];

export const STEP_STATUSES = ['pending', 'running', 'succeeded', 'failed'] as const;

/** One numbered step of a job, as `GET /api/v1/jobs/:job_id` shows it. Times are ISO 8601 UTC. */
export interface JobStep {
  name: string;
  status: (typeof STEP_STATUSES)[number];
  started_at: string | null;
  finished_at: string | null;
}

/** Why a job failed. `code` is one of the API's or the host's failure codes. */
export interface JobError {
  code: string;
  message: string;
}
