import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { BranchIdentity } from '../postgres/branches.ts';
import type { Session } from '../postgres/connect.ts';
import { releaseLock, takeLock } from '../postgres/locks.ts';
import type { OnProgress } from '../process/progress.ts';
import { ADOPTED, cloneState } from './claim-branch.ts';
import type { CloneHost } from './create-clone.ts';
import { createClone, createUnusedClone } from './create-clone.ts';

type BatchClone = Pick<Params<'batch.clone'>, 'source' | 'busy_wait'> & {
  members: readonly BranchIdentity[];
};
type CloneResult = MethodResult<'batch.clone'>;

/**
 * Clones the source for the first branch, and that clone for the others, which no client can use yet. The clients of the
 * source are held during the first clone only, and every branch has the same content, also if a crash comes in between.
 */
export async function cloneBatch(
  host: CloneHost,
  session: Session,
  { members, source, busy_wait }: BatchClone,
  onProgress?: OnProgress,
): Promise<CloneResult> {
  const states = [];
  for (const member of members) states.push({ member, state: await cloneState(session, member) });
  const missing = states.filter(({ state }) => state === 'nothing').map(({ member }) => member);
  const built = states.find(({ state }) => state === 'built')?.member;
  const finalized = states.find(({ state }) => state === 'finalized')?.member;
  const [first, ...others] = missing;
  if (!first) return ADOPTED;
  if (built) {
    await cloneBuilt(host, session, built, missing);
    return ADOPTED;
  }
  // A finalized branch without any other: what the host lost since is made again from it.
  const from = finalized?.database ?? source;
  await takeLock(session, `source:${from}`);
  const result = await createClone(
    host,
    session,
    { name: buildDatabaseName(first.job_id), source: from, busy_wait },
    onProgress,
  );
  // Other clones of the source can begin.
  await releaseLock(session, `source:${from}`);
  await cloneBuilt(host, session, first, others);
  return result;
}

async function cloneBuilt(
  host: CloneHost,
  session: Session,
  from: BranchIdentity,
  members: readonly BranchIdentity[],
): Promise<void> {
  for (const { job_id } of members)
    await createUnusedClone(host, session, {
      name: buildDatabaseName(job_id),
      source: buildDatabaseName(from.job_id),
    });
}
