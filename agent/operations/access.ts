import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { type AccessHost, storeAndEnforce } from '../access/enforce-access.ts';
import type { Pool } from '../postgres/connect.ts';
import type { SqlRequests } from '../sql/run-sql.ts';
import type { Membership } from '../standby/membership.ts';

interface AppliedHost extends AccessHost {
  sessions: Pool;
  postgres: Pool;
  sql: { clients: Pick<SqlRequests['clients'], 'recheck'> };
  member: Membership;
}

/** Returns when this access, or a newer one, is in effect on both ports and for all open sessions. */
export async function applyAccess(
  host: AppliedHost,
  params: Params<'access.apply'>,
): Promise<MethodResult<'access.apply'>> {
  await storeAndEnforce(host, params);
  await host.sql.clients.recheck(host);
  if (params.access.durability === 'sync') await host.member.synchronise();
  return { revision: params.access.revision };
}
