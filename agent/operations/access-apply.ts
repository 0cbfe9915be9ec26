import type { Params, Result } from '../../shared/protocol/operations.ts';
import { replaceRules } from '../access/network-rules.ts';
import { inTransaction } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import type { Host } from './host.ts';

/** Answers when both ports obey these rules, or newer ones. */
export async function applyAccess(
  host: Host,
  { project_id, access }: Params<'access.apply'>,
): Promise<Result<'access.apply'>> {
  await withLocks(host.sessions, [], (session) =>
    inTransaction(session, () => replaceRules(session, project_id, access)),
  );
  await host.rules.publish();
  return { revision: access.revision };
}
