import type { BranchgateClient } from './client.ts';
import { dataOf, ResponseError } from './response-error.ts';

/** The branch of a project with this name or ID; null if there is none. @throws ResponseError */
export async function findBranch({ api }: BranchgateClient, projectId: string, reference: string) {
  const params = { path: { project_id: projectId } };
  const { branches } = await dataOf(api.GET('/api/v1/projects/{project_id}/branches', { params }));
  return branches.find(({ id, branch_name }) => branch_name === reference || id === reference) ?? null;
}

const FRESH_SECONDS = 3_600;

/**
 * Whether it is cloned by default in place of its branch: a snapshot has no sessions that the clone would end.
 * One that was left by a reset holds what somebody did not want.
 */
export const isFreshSnapshot = (
  { kind, taken_at }: { kind: string; taken_at: string },
  now = Date.now(),
): boolean => kind !== 'safety' && now - Date.parse(taken_at) < FRESH_SECONDS * 1000;

/** The ID of the newest snapshot of a branch, if it is fresh; null otherwise. @throws ResponseError */
export async function findFreshSnapshot(
  { api }: BranchgateClient,
  project_id: string,
  branch_ref: string,
): Promise<string | null> {
  const path = '/api/v1/projects/{project_id}/branches/{branch_ref}/snapshots';
  const { data, error, response } = await api.GET(path, { params: { path: { project_id, branch_ref } } });
  // A key that is bound to the names of its branches does not see others.
  if (response.status === 404) return null;
  if (!data) throw new ResponseError(response, error);
  return data.snapshots.find((snapshot) => isFreshSnapshot(snapshot))?.id ?? null;
}
