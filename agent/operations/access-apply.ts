import type { Params, Result } from '../../shared/protocol/operations.ts';
import { enforceAccess } from '../access/enforce-access.ts';
import { storeAccess } from '../access/store-access.ts';
import type { Host } from '../host.ts';
import { inTransaction } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';

/** Answers when both ports and the sessions that are open obey this access, or a newer one. */
export async function applyAccess(
  host: Host,
  { project_id, access }: Params<'access.apply'>,
): Promise<Result<'access.apply'>> {
  await withLocks(host.sessions, [], async (session) => {
    await inTransaction(session, () => storeAccess(session, project_id, access));
    await enforceAccess(host, session, project_id);
  });
  return { revision: access.revision };
}
