import { snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { dropDatabase } from '../postgres/databases.ts';
import { withLocks } from '../postgres/locks.ts';
import { copyDatabaseName, readSnapshotSize } from '../snapshots/snapshot-databases.ts';

/** Drops the snapshot as far as it exists. Waits while it is being taken or copied. */
export function dropSnapshot(
  host: Host,
  { snapshot_id }: Params<'snapshot.drop'>,
): Promise<MethodResult<'snapshot.drop'>> {
  return withLocks(host.sessions, [`clone:${snapshot_id}`], async (session) => {
    const dropped = (await readSnapshotSize(session, snapshot_id)) !== null;
    for (const name of [snapshotDatabaseName(snapshot_id), copyDatabaseName(snapshot_id)])
      await dropDatabase(session, name);
    await session.query('DELETE FROM snapshot WHERE snapshot_id = $1', [snapshot_id]);
    return { dropped };
  });
}
