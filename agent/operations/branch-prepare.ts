import type { Params } from '../../shared/protocol/operations.ts';
import { enforceAccess, unenforcedProjects } from '../access/enforce-access.ts';
import { introduceProject } from '../access/store-access.ts';
import { claimBranch } from '../cloning/claim-branch.ts';
import type { Host } from '../host.ts';
import { inTransaction } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import { ensureGroups, ensureLogins, restoreLogins } from '../postgres/roles.ts';

/** Makes the branch's logins, rules and pooler entry. It runs concurrently with the branch's clone. */
export function prepareBranch(host: Host, params: Params<'branch.prepare'>): Promise<Record<string, never>> {
  return withLocks(host.sessions, [`prepare:${params.branch_id}`], async (session) => {
    // Committed separately, because the concurrent clone waits for the claim.
    await claimBranch(session, params);
    await inTransaction(session, async () => {
      await ensureGroups(session, params.project_id);
      await ensureLogins(session, params, params.verifiers);
      await introduceProject(session, params.project_id, params.access);
      // The project may be write-blocked.
      await restoreLogins(session, params.project_id);
    });
    // Usually the access in this call is no newer than the one in effect, and syncing the rules is enough.
    const unenforced = await unenforcedProjects(session);
    if (unenforced.includes(params.project_id)) await enforceAccess(host, session, params.project_id);
    else await host.rules.sync();
    return {};
  });
}
