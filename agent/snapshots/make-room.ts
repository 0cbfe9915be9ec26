import { NoCopyRoom } from '../cloning/copy-room.ts';
import { withLocks } from '../postgres/locks.ts';
import type { HostError } from '../process/host-error.ts';
import { pollUntil, runLoop } from '../process/loops.ts';
import { freeBytes } from '../volumes/volumes.ts';
import { dropSnapshot, SNAPSHOT_NAME, type SnapshotKind } from './snapshot-databases.ts';
import type { Spares } from './spares.ts';
import type { StandingHost } from './standing-snapshots.ts';

/** What it takes to make room on the disk. */
export interface RoomHost extends StandingHost {
  spares: Spares;
  /** What the gateway knows of this host. */
  known: { outdate: () => void; isOutdated: (freeBytes: number) => boolean };
}

const MB = 2 ** 20;
const CHECK_EVERY_MS = 2_000;

/** A file system may free the space of deleted files a little later. */
const FREED = { within: 2_000, every: 50 };

/** The database of a deleted branch, or a checkpoint. */
interface Spendable {
  project_id: string;
  snapshot_id: string;
  branch_id: string;
  kind: Extract<SnapshotKind, 'checkpoint' | 'deleted'>;
  bytes: number;
}

/** Checkpoints, then deleted branches without those that are being restored; of each the oldest first. */
async function readSpendable({ postgres }: RoomHost): Promise<Spendable[]> {
  const { rows } = await postgres.query<Spendable>(
    `SELECT project_id, snapshot_id, branch_id, kind, coalesce(pg_database_size(oid), 0)::float8 AS bytes
     FROM snapshot LEFT JOIN pg_database ON datname = ${SNAPSHOT_NAME}
     WHERE kind = 'checkpoint'
       OR kind = 'deleted' AND NOT EXISTS (SELECT FROM branch WHERE branch.branch_id = snapshot.branch_id)
     ORDER BY kind, taken_at`,
  );
  return rows;
}

/** A restoration that has begun meanwhile keeps its database. */
function dropSpendable(host: RoomHost, spendable: Spendable): Promise<void> {
  const { project_id, branch_id, kind } = spendable;
  return withLocks(host.sessions, [`prepare:${branch_id}`, `clone:${branch_id}`], async (session) => {
    const { rowCount } = await session.query('SELECT FROM branch WHERE branch_id = $1', [branch_id]);
    if (kind === 'deleted' && rowCount !== 0) return;
    try {
      const { dropped } = await dropSnapshot(host, spendable);
      const event = kind === 'deleted' ? 'disk.deleted_branch_dropped' : 'disk.checkpoint_dropped';
      if (dropped) host.log(event, { project_id, branch_id, reason: 'the disk is full' });
    } finally {
      // A call that failed may have dropped the database, too.
      host.known.outdate();
    }
  });
}

/**
 * Drops the oldest checkpoint, or the database of the branch that was deleted first, before its time: the disk is full.
 * @returns whether there was one
 * @throws the failure to drop the oldest, if none could be dropped
 */
export async function dropOldest(host: RoomHost): Promise<boolean> {
  const failures: unknown[] = [];
  for (const spendable of await readSpendable(host)) {
    try {
      await dropSpendable(host, spendable);
      return true;
    } catch (error) {
      // One that cannot be dropped does not save the younger ones.
      failures.push(error);
    }
  }
  if (failures.length > 0) throw failures[0];
  return false;
}

/** Drops what only saves time: all spares, and then all standing snapshots. @returns whether there was one */
const dropReady = async (host: RoomHost): Promise<boolean> =>
  (await host.spares.dropAll(host.postgres)) || (await host.standing.dropAll(host));

/**
 * Drops all spares, or else all standing snapshots. If there are none, drops as many checkpoints, then databases of deleted branches, as an operation
 * needs that was refused for want of room, the oldest first. Drops none if all of them together would not do, because they belong to other tenants too, or
 * while a copy runs, whose room is counted until it ends.
 * @returns whether the operation may be repeated
 */
export async function makeRoom(host: RoomHost, failure: HostError): Promise<boolean> {
  if (await dropReady(host)) return true;
  const bytes = failure instanceof NoCopyRoom ? failure.bytes : 0;
  const { copyRoom } = host;
  let missing = await copyRoom.missing(bytes);
  // What PostgreSQL refused would be refused again.
  if (missing <= 0) return failure instanceof NoCopyRoom;
  while (missing > 0) {
    // Read again each time: a branch may be restored by now.
    const spendable = await readSpendable(host);
    const [oldest] = spendable;
    const possible = spendable.reduce((sum, one) => sum + one.bytes, 0);
    if (!oldest || missing > possible || copyRoom.isCopying) return false;
    await dropSpendable(host, oldest);
    missing -= oldest.bytes;
  }
  return (await pollUntil(async () => (await copyRoom.missing(bytes)) <= 0, FREED)) === true;
}

/**
 * Makes room while less than `MIN_FREE_DISK_MB` are free, one database after another.
 * @param report notifies the gateway that what it knows of the host is outdated; called until it has read the
 *   inventory
 */
export async function runRoomLoop(host: RoomHost, report: () => void, signal: AbortSignal): Promise<void> {
  const { PGDATA_DIR, MIN_FREE_DISK_MB } = host.settings;
  const check = async () => {
    const free = await freeBytes(PGDATA_DIR);
    try {
      if (free < MIN_FREE_DISK_MB * MB && !(await dropReady(host))) await dropOldest(host);
    } finally {
      if (host.known.isOutdated(free)) report();
    }
  };
  await runLoop(check, { every: CHECK_EVERY_MS, signal, log: host.log, failed: 'disk.no_room_made' });
}
