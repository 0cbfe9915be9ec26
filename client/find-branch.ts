import type { BranchgateClient } from './client.ts';
import { dataOf } from './response-error.ts';

/** The branch of a project with this name or ID; null if there is none. @throws ResponseError */
export async function findBranch({ api }: BranchgateClient, projectId: string, reference: string) {
  const params = { path: { project_id: projectId } };
  const { branches } = await dataOf(api.GET('/api/v1/projects/{project_id}/branches', { params }));
  return branches.find(({ id, branch_name }) => branch_name === reference || id === reference) ?? null;
}
