import type { BranchgateClient, Schemas, WaitOptions } from './client.ts';
import { dataOf, JobError } from './response-error.ts';

export type Change = Schemas['Change'];

const CHANGE = '/api/v1/projects/{project_id}/changes/{change_id}';

/**
 * Waits for the end of the job of a change. A change that has stopped is a result, with the reason in `application`.
 * @throws JobError if a rehearsal or an undo failed
 */
export async function endOfChange(
  client: BranchgateClient,
  { project_id, id: change_id, job_id }: Pick<Change, 'project_id' | 'id' | 'job_id'>,
  options: WaitOptions = {},
): Promise<Change> {
  if (job_id !== null)
    await client.waitForJob(job_id, options).catch((error) => {
      if (!(error instanceof JobError) || error.code !== 'CHANGE_STOPPED') throw error;
    });
  const { signal } = options;
  return dataOf(
    client.api.GET(CHANGE, { params: { path: { project_id, change_id } }, ...(signal && { signal }) }),
  );
}
