import type { Params } from '../../shared/protocol/operations.ts';
import { enforceAccess, unenforcedProjects } from '../access/enforce-access.ts';
import { introduceProject } from '../access/store-access.ts';
import { claimBranch } from '../cloning/claim-branch.ts';
import type { Host } from '../host.ts';
import { inTransaction } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import { ensureGroups, ensureLogins, restoreLogins } from '../postgres/roles.ts';

/** Makes the branch's logins, rules and pooler entry, side by side with its clone. */
export function prepareBranch(host: Host, params: Params<'branch.prepare'>): Promise<Record<string, never>> {
  return withLocks(host.sessions, [`prepare:${params.branch_id}`], async (session) => {
    // First and by itself: the clone beside it waits until this is decided.
    await claimBranch(session, params);
    await inTransaction(session, async () => {
      await ensureGroups(session, params.project_id);
      await ensureLogins(session, params, params.verifiers);
      await introduceProject(session, params.project_id, params.access);
      // Its project may be write-blocked.
      await restoreLogins(session, params.project_id);
    });
    // The access that came with it can be newer than what was applied; mostly it is not.
    const unenforced = await unenforcedProjects(session);
    if (unenforced.includes(params.project_id)) await enforceAccess(host, session, params.project_id);
    else await host.rules.sync();
    return {};
  });
}
