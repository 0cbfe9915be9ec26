import { freeBytes } from '../guard/volumes.ts';
import type { Host } from '../host.ts';
import { dropSnapshot } from '../operations/snapshot-drop.ts';
import { repeat } from '../repeat.ts';
import { TroubleLog } from '../trouble-log.ts';

const MB = 2 ** 20;
const CHECK_EVERY_MS = 2_000;

/**
 * Drops the database of the branch that was deleted first, before its time: the disk is full. The gateway finds that out
 * at its next reconciliation. A branch that is being restored is spared.
 * @returns whether there was one
 */
export async function dropOldestDeleted(host: Host): Promise<boolean> {
  const { rows } = await host.postgres.query<{ project_id: string; snapshot_id: string; branch_id: string }>(
    `SELECT project_id, snapshot_id, branch_id FROM snapshot
     WHERE kind = 'deleted' AND NOT EXISTS (SELECT FROM branch WHERE branch.branch_id = snapshot.branch_id)
     ORDER BY taken_at LIMIT 1`,
  );
  const [oldest] = rows;
  if (!oldest) return false;
  await dropSnapshot(host, oldest);
  const { project_id, branch_id } = oldest;
  host.log('disk.deleted_branch_dropped', { project_id, branch_id, reason: 'the disk is full' });
  return true;
}

/** Makes room while less than `MIN_FREE_DISK_MB` are free, one database after another. Never throws. */
export async function runRoomLoop(host: Host, signal: AbortSignal): Promise<void> {
  const { PGDATA_DIR, MIN_FREE_DISK_MB } = host.settings;
  const troubles = new TroubleLog(host.log);
  await repeat(
    async () => {
      try {
        if ((await freeBytes(PGDATA_DIR)) < MIN_FREE_DISK_MB * MB) await dropOldestDeleted(host);
        troubles.clearAll();
      } catch (error) {
        troubles.report('disk.no_room_made', 'room', error);
      }
    },
    CHECK_EVERY_MS,
    signal,
  );
}
