import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { readRehearsal, toRehearsal } from '../rehearsal/stored-rehearsals.ts';

export async function reportRehearsal(
  host: Host,
  { branch_id }: Params<'rehearsal.read'>,
): Promise<MethodResult<'rehearsal.read'>> {
  const stored = await readRehearsal(host.postgres, branch_id);
  return { rehearsal: stored && toRehearsal(stored) };
}
