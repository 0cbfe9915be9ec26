import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { membersOf } from '../cloning/batch-members.ts';
import { claimBranch } from '../cloning/claim-branch.ts';
import { cloneBatch } from '../cloning/clone-batch.ts';
import type { Host } from '../host.ts';
import { withLocks } from '../postgres/locks.ts';
import type { OnProgress } from '../progress.ts';

/**
 * Makes the databases of a batch under names that no tenant can reach. Those that an earlier call made are adopted.
 * @throws HostError SOURCE_BUSY, SOURCE_MISSING, DATABASE_NAME_HELD, INVALID_CALL, POOLER_UNAVAILABLE
 */
export function cloneBatchBranches(
  host: Host,
  params: Params<'batch.clone'>,
  onProgress?: OnProgress,
): Promise<MethodResult<'batch.clone'>> {
  const members = membersOf(params);
  const locks = members.map(({ branch_id }) => `clone:${branch_id}` as const);
  return withLocks(host.sessions, locks, async (session) => {
    for (const member of members) await claimBranch(session, member);
    return cloneBatch(host, session, { ...params, members }, onProgress);
  });
}
