import type { Params } from '../../shared/protocol/operations.ts';
import { membersOf } from '../cloning/batch-members.ts';
import type { Host } from '../host.ts';
import { openBranch, repair } from './branch-finalize.ts';

/**
 * Finalizes the clones of a batch. They have the same content, so the first one shows whether privileges are lost in
 * the others.
 * @throws HostError DATABASE_NAME_HELD, INVALID_CALL
 */
export async function finalizeBatch(
  host: Host,
  params: Params<'batch.finalize'>,
): Promise<Record<string, never>> {
  const [first, ...others] = membersOf(params);
  if (!first) return {};
  for (const member of [first, ...others]) await openBranch(host, member);
  if (await repair(host, first)) for (const member of others) await repair(host, member);
  return {};
}
