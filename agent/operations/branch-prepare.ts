import type { Params } from '../../shared/protocol/operations.ts';
import { introduceProject } from '../access/network-rules.ts';
import { inTransaction } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import { ensureGroups, ensureLogins } from '../postgres/roles.ts';
import type { Host } from './host.ts';
import { reserveBranch } from './reserve-branch.ts';

/** Makes the branch's logins, rules and pooler entry, side by side with its clone. */
export function prepareBranch(host: Host, params: Params<'branch.prepare'>): Promise<Record<string, never>> {
  return withLocks(host.sessions, [`prepare:${params.branch_id}`], async (session) => {
    // First and by itself: the clone beside it waits until this is decided.
    await inTransaction(session, () => reserveBranch(session, params));
    await inTransaction(session, async () => {
      await ensureGroups(session, params.project_id);
      await ensureLogins(session, params, params.verifiers);
      await introduceProject(session, params.project_id, params.access);
    });
    await host.rules.publish();
    return {};
  });
}
