import { ACCESS_OF_STATE } from '../../shared/project/storage-quota.ts';
import type { Method, Params } from '../../shared/protocol/operations.ts';
import { requireConfirmation } from '../branches/protect-branch.ts';
import type { BranchRow } from '../database/schema.ts';
import { ApiError, unwrap } from '../errors.ts';
import { callHostForClient } from '../hosts/host-client.ts';
import type { AppContext } from '../pipeline/context.ts';
import type { ProjectView } from '../tenancy/project-access.ts';
import { inBranch } from './in-project.ts';

/** Failures of every operation in a branch's database. */
export const HOST_FAILURES = [
  'BRANCH_NOT_ACTIVE',
  'DATABASES_CLOSED',
  'STATEMENT_REFUSED',
  'TIME_LIMIT_REACHED',
  'PROJECT_BUSY',
  'HOST_BUSY',
  'HOST_FULL',
  'HOST_UNAVAILABLE',
  'HOST_UPGRADE_REQUIRED',
  'HOST_TIMEOUT',
  'DATABASE_SERVER_UNAVAILABLE',
] as const;

/**
 * The active branch of the reference, with a function that calls its host.
 * @param confirm the name of a protected branch that is changed
 * @throws ApiError
 */
export async function branchOf(
  c: AppContext,
  reference: { project_id: string; branch_ref: string },
  use: 'read' | 'change',
  confirm?: string,
) {
  const [project, branch] = await inBranch(c, reference, () => []);
  return usableBranch(c, project, branch, use, confirm);
}

/** The same for a branch that was read with other records. @throws ApiError */
export function usableBranch(
  c: AppContext,
  project: ProjectView,
  branch: BranchRow,
  use: 'read' | 'change',
  confirm?: string,
) {
  if (branch.status !== 'active') throw new ApiError('BRANCH_NOT_ACTIVE');
  const access = ACCESS_OF_STATE[project.storageState];
  if (access === 'closed') throw new ApiError('DATABASES_CLOSED');
  if (use === 'change' && access === 'write_blocked') throw new ApiError('WRITE_BLOCKED');
  // Rows of `main` have always been changed without it (specification 4.3).
  if (use === 'change' && !branch.isDefault) requireConfirmation(branch, confirm);
  const database = { branch_id: branch.id, database: branch.databaseName };
  const call = async <M extends Method>(method: M, params: Params<M>) =>
    unwrap(await callHostForClient(c.env, project.hostId, method, params));
  return { project, branch, database, call };
}
