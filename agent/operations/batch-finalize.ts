import type { Params } from '../../shared/protocol/operations.ts';
import { membersOf } from '../cloning/batch-members.ts';
import type { Host } from '../host.ts';
import { openBranches, repair } from './branch-finalize.ts';

/**
 * Finalizes the clones of a batch in one transaction. They have the same content, so the first one shows whether privileges are lost in
 * the others.
 * @throws HostError DATABASE_NAME_HELD, INVALID_CALL
 */
export async function finalizeBatch(
  host: Host,
  params: Params<'batch.finalize'>,
): Promise<Record<string, never>> {
  const members = membersOf(params);
  await openBranches(host, members);
  const [first, ...others] = members;
  if (first && (await repair(host, first))) for (const member of others) await repair(host, member);
  return {};
}
