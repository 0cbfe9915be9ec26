import type { Params } from '../../shared/protocol/operations.ts';
import { membersOf } from '../cloning/batch-members.ts';
import type { Host } from '../host.ts';
import { openBranches } from './branch-finalize.ts';

/** Finalizes the clones of a batch in one transaction. @throws HostError DATABASE_NAME_HELD, INVALID_CALL */
export async function finalizeBatch(
  host: Host,
  params: Params<'batch.finalize'>,
): Promise<Record<string, never>> {
  await openBranches(host, membersOf(params));
  return {};
}
