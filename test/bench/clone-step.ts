import type { Api } from '../support/api.ts';
import type { Job } from '../support/jobs.ts';

/** Milliseconds that the newest job of a project took for its clone, as its steps say. */
export async function cloneStep(api: Api, projectId: string): Promise<number> {
  const { body } = await api.get<{ jobs: Job[] }>(`/api/v1/projects/${projectId}/jobs?limit=1`);
  const step = body.jobs[0]?.steps.find(({ name }) => name === 'clone');
  return Date.parse(step?.finished_at ?? '') - Date.parse(step?.started_at ?? '');
}
