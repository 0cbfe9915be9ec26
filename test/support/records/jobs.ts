import { setTimeout as sleep } from 'node:timers/promises';
import type { JobError, JobStep } from '../../../shared/project/job.ts';
import type { Api } from '../api.ts';

export interface Job {
  id: string;
  kind: string;
  status: string;
  steps: JobStep[];
  error: JobError | null;
}

const LOOK_EVERY_MS = 50;

/** The job once it has ended, well or not. */
export async function ended(api: Api, jobId: string): Promise<Job> {
  for (;;) {
    const { body } = await api.get<Job>(`/api/v1/jobs/${jobId}`);
    if (body.status === 'succeeded' || body.status === 'failed') return body;
    await sleep(LOOK_EVERY_MS);
  }
}

/** Deletes a branch and waits until its database is kept. */
export const dropBranch = (api: Api, projectId: string, branchId: string): Promise<void> =>
  deleteBranch(api, `/api/v1/projects/${projectId}/branches/${branchId}`);

/** Deletes a branch for good and waits until its database is gone too. */
export const purgeBranch = (api: Api, projectId: string, branchId: string): Promise<void> =>
  deleteBranch(api, `/api/v1/projects/${projectId}/branches/${branchId}?purge=true`);

/** Deletes a snapshot and waits until its database is gone too. */
export const dropSnapshot = (api: Api, projectId: string, snapshotId: string): Promise<void> =>
  deleteBranch(api, `/api/v1/projects/${projectId}/snapshots/${snapshotId}`);

async function deleteBranch(api: Api, path: string): Promise<void> {
  const { body } = await api.delete<{ job_id: string }>(path);
  await ended(api, body.job_id);
}

/** Deletes a project and waits until its databases are gone, which is when its record goes. */
export async function dropProject(api: Api, projectId: string): Promise<void> {
  const path = `/api/v1/projects/${projectId}`;
  await api.delete(path);
  while ((await api.get(path)).status !== 404) await sleep(LOOK_EVERY_MS);
}
