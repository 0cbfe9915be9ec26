import type { Params } from '../../shared/protocol/operations.ts';
import { enforceAccess, unenforcedProjects } from '../access/enforce-access.ts';
import { introduceProject } from '../access/store-access.ts';
import { claimBranch } from '../cloning/claim-branch.ts';
import type { Host } from '../host.ts';
import { inTransaction } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import { ensureGroups, ensureLogins, restoreLogins } from '../postgres/roles.ts';

/** Makes the branch's logins, rules and pooler entry. It runs concurrently with the branch's clone. */
export const prepareBranch = (
  host: Host,
  { access, ...branch }: Params<'branch.prepare'>,
): Promise<Record<string, never>> => prepareBranches(host, [branch], access);

/** Prepares branches of one project, with one application of the rules. */
export function prepareBranches(
  host: Host,
  branches: readonly Omit<Params<'branch.prepare'>, 'access'>[],
  access: Params<'branch.prepare'>['access'],
): Promise<Record<string, never>> {
  const [projectId = ''] = branches.map(({ project_id }) => project_id);
  const locks = branches.map(({ branch_id }) => `prepare:${branch_id}` as const);
  return withLocks(host.sessions, locks, async (session) => {
    // Committed separately, because the concurrent clone waits for the claim.
    for (const branch of branches) await claimBranch(session, branch);
    await inTransaction(session, async () => {
      await ensureGroups(session, projectId);
      for (const branch of branches) await ensureLogins(session, branch, branch.verifiers);
      await introduceProject(session, projectId, access);
      // Without a write block, the logins get the rest of their rights when their databases are opened.
      if (access.write_blocked) await restoreLogins(session, projectId);
    });
    // Usually the access in this call is no newer than the one in effect, and syncing the rules is enough.
    const unenforced = await unenforcedProjects(session);
    if (unenforced.includes(projectId)) await enforceAccess(host, session, projectId);
    else await host.rules.sync();
    return {};
  });
}
