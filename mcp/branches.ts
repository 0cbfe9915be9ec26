import type { Schemas } from '../client/client.ts';
import { findBranch as branchIn } from '../client/find-branch.ts';
import { dataOf } from '../client/response-error.ts';
import { take } from '../shared/take.ts';
import { type ToolContext, ToolError } from './tool.ts';

type Branch = Schemas['Branch'];

/** The label that names the credential which made a branch through these tools. */
export const MADE_BY = 'agent';

/** The project of a call. @throws ToolError if it has to be named */
export async function projectOf(
  { client, project }: ToolContext,
  given: string | undefined,
): Promise<string> {
  const known = given ?? project;
  if (known != null) return known;
  const [only, ...others] = await take(client.all('/api/v1/projects'), 2);
  if (!only) throw new ToolError('There is no project that this credential can see.');
  if (others.length > 0)
    throw new ToolError('There are several projects. Give project_id, which list_projects shows.');
  return only.id;
}

/** ID of the user, API key or trust whose credential this is. */
export async function ownId({ client }: ToolContext): Promise<string> {
  const { actor_id: id } = await dataOf(client.api.GET('/api/v1/me'));
  if (id === null) throw new ToolError('This credential belongs to no tenant.');
  return id;
}

/** @throws ToolError */
export async function findBranch({ client }: ToolContext, projectId: string, reference: string) {
  const found = await branchIn(client, projectId, reference);
  if (!found) throw new ToolError(`There is no branch ${reference}. list_branches shows the branches.`);
  return found;
}

/**
 * The ID of a branch that this credential has made through these tools.
 * @throws ToolError for any other branch
 */
export async function ownBranch(context: ToolContext, projectId: string, reference: string): Promise<string> {
  const [own, branch] = await Promise.all([ownId(context), findBranch(context, projectId, reference)]);
  if (branch.labels[MADE_BY] !== own)
    throw new ToolError(
      `${branch.branch_name} was not made with create_branch by this credential, so it cannot be reset, undone or deleted here.`,
    );
  return branch.id;
}

/** The fields of a branch that an agent needs. */
export const shownBranch = (
  branch: Omit<Branch, 'deletes_at' | 'updated_at' | 'blocked' | 'connections_blocked_until' | 'closed_to'>,
) => ({
  id: branch.id,
  branch_name: branch.branch_name,
  status: branch.status,
  data: branch.data,
  parent_branch_id: branch.parent_branch_id,
  expires_at: branch.expires_at,
  protected: branch.protected || branch.is_default,
  labels: branch.labels,
  created_at: branch.created_at,
});
