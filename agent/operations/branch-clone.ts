import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { claimBranch } from '../cloning/claim-branch.ts';
import { ADOPTED, cloneState } from '../cloning/clone-state.ts';
import { createClone } from '../cloning/create-clone.ts';
import { grantGroups } from '../cloning/grant-groups.ts';
import type { Host } from '../host.ts';
import { inTransaction } from '../postgres/connect.ts';
import { takeLock, withLocks } from '../postgres/locks.ts';
import { ensureGroups } from '../postgres/roles.ts';
import type { OnProgress } from '../progress.ts';

type CloneResult = MethodResult<'branch.clone'>;

/**
 * Makes the branch's database under a name that no tenant can reach. A database that an earlier call made is
 * adopted, even if the agent of that call died before it was complete.
 * @throws HostError SOURCE_BUSY, SOURCE_MISSING, DATABASE_NAME_HELD, INVALID_CALL, POOLER_UNAVAILABLE
 */
export function cloneBranch(
  host: Host,
  params: Params<'branch.clone'>,
  onProgress?: OnProgress,
): Promise<CloneResult> {
  const { project_id, branch_id, job_id, source, busy_wait } = params;
  return withLocks(host.sessions, [`clone:${branch_id}`], async (session) => {
    await claimBranch(session, params);
    // With a source the groups exist already, and `branch.prepare` locks them for a while.
    if (source === null) await inTransaction(session, () => ensureGroups(session, project_id));
    else await takeLock(session, `source:${source}`);
    const state = await cloneState(session, params);
    if (state === 'finalized') return ADOPTED;
    const name = buildDatabaseName(job_id);
    const result =
      state === 'built' ? ADOPTED : await createClone(host, session, { name, source, busy_wait }, onProgress);
    // Repeated after an adoption: the agent that made the clone may have died before it.
    if (source === null) await grantGroups(host.settings, name, project_id);
    return result;
  });
}
