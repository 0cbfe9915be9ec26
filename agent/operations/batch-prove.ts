import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { membersOf } from '../cloning/batch-members.ts';
import type { Host } from '../host.ts';
import { proveBranch } from './branch-prove.ts';

/** Logins at a time: the first session in a new database costs processor time, and the clients need some too. */
const CONCURRENT = 4;

/** Logs in to every branch of a batch. @throws HostError PROOF_FAILED, POOLER_UNAVAILABLE */
export async function proveBatch(
  host: Host,
  params: Params<'batch.prove'>,
): Promise<MethodResult<'batch.prove'>> {
  const members = membersOf(params);
  let slowest = 0;
  const proveNext = async () => {
    for (let member = members.shift(); member; member = members.shift())
      slowest = Math.max(slowest, (await proveBranch(host, member)).login_ms);
  };
  await Promise.all(Array.from({ length: CONCURRENT }, proveNext));
  return { login_ms: slowest };
}
