import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { ADOPTED } from '../cloning/clone-state.ts';
import { createClone } from '../cloning/create-clone.ts';
import type { Host } from '../host.ts';
import { dropDatabase, readDatabases } from '../postgres/databases.ts';
import { takeLock, withLocks } from '../postgres/locks.ts';
import type { OnProgress } from '../progress.ts';

/**
 * Makes the database that a reset swaps in. One that an earlier call made is adopted, also if it is swapped in already.
 * @throws HostError SOURCE_BUSY, SOURCE_MISSING, POOLER_UNAVAILABLE
 */
export function cloneForReset(
  host: Host,
  { job_id, branch_id, database, source, busy_wait }: Params<'reset.clone'>,
  onProgress?: OnProgress,
): Promise<MethodResult<'reset.clone'>> {
  return withLocks(host.sessions, [`clone:${branch_id}`], async (session) => {
    const name = buildDatabaseName(job_id);
    const found = await readDatabases(session, [name, database]);
    if (found.some(({ mark }) => mark?.job_id === job_id)) return ADOPTED;
    const build = found.find((one) => one.name === name);
    if (build?.interrupted) await dropDatabase(session, name);
    else if (build) return ADOPTED;
    await takeLock(session, `source:${source}`);
    return createClone(host, session, { name, source, busy_wait }, onProgress);
  });
}
