import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { AccessHost } from '../access/enforce-access.ts';
import { enforceAccess } from '../access/enforce-access.ts';
import { storeAccess } from '../access/store-access.ts';
import type { Pool } from '../postgres/connect.ts';
import { inTransaction } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import type { Membership } from '../standby/membership.ts';

interface AppliedHost extends AccessHost {
  sessions: Pool;
  member: Membership;
}

/** Returns when this access, or a newer one, is in effect on both ports and for all open sessions. */
export async function applyAccess(
  host: AppliedHost,
  { project_id, access }: Params<'access.apply'>,
): Promise<MethodResult<'access.apply'>> {
  await withLocks(host.sessions, [], async (session) => {
    await inTransaction(session, () => storeAccess(session, project_id, access));
    await enforceAccess(host, session, project_id);
  });
  if (access.durability === 'sync') await host.member.synchronise();
  return { revision: access.revision };
}
