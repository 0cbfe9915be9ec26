import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { dropDatabase, readDatabases } from '../postgres/databases.ts';
import { withLocks } from '../postgres/locks.ts';
import { readSnapshotSize } from '../snapshots/snapshot-databases.ts';

/** Drops what `reset.clone` made. After `reset.swap` there is nothing under that name, but the snapshot. */
export function cancelReset(
  host: Host,
  { job_id, branch_id, snapshot_id }: Params<'reset.cancel'>,
): Promise<MethodResult<'reset.cancel'>> {
  return withLocks(host.sessions, [`clone:${branch_id}`], async (session) => {
    const found = await readDatabases(session, [buildDatabaseName(job_id)]);
    for (const { name } of found) await dropDatabase(session, name);
    const size = await readSnapshotSize(session, snapshot_id);
    return {
      dropped: found.length > 0,
      left: size === null ? null : { kept: true, size_bytes: size },
    };
  });
}
