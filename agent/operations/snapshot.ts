import { snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { type CloneHost, createClone } from '../cloning/create-clone.ts';
import type { Pool, Queryable, Session } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import type { OnProgress } from '../process/progress.ts';
import { readSnapshotSize, type SnapshotKind } from '../snapshots/snapshot-databases.ts';

interface SnapshotHost extends CloneHost {
  sessions: Pool;
}

/**
 * Clones a branch under a name of its own. The clone is complete as soon as it is there, because CREATE
 * DATABASE is one transaction.
 * @throws HostError SOURCE_BUSY, SOURCE_MISSING, POOLER_UNAVAILABLE, HOST_FULL
 */
export function takeSnapshot(
  host: SnapshotHost,
  {
    project_id,
    branch_id,
    snapshot_id,
    source,
    busy_wait,
    unless_same_as,
    checkpoint,
  }: Params<'snapshot.take'>,
  onProgress?: OnProgress,
): Promise<MethodResult<'snapshot.take'>> {
  const locks = [`clone:${snapshot_id}`, `source:${source}`] as const;
  return withLocks(host.sessions, locks, async (session) => {
    const present = await readSnapshotSize(session, snapshot_id);
    if (present !== null) return taken(session, snapshot_id, present);
    const changes = await readChanges(session, source);
    if (changes !== null && changes === (await changesAt(session, unless_same_as)))
      return { taken: false, size_bytes: 0, independent: false };
    const kind: SnapshotKind = checkpoint ? 'checkpoint' : 'taken';
    await session.query(
      `INSERT INTO snapshot (snapshot_id, project_id, branch_id, source, changes, kind) VALUES ($1, $2, $3, $4, $5, $6)
       ON CONFLICT (snapshot_id) DO UPDATE SET changes = excluded.changes`,
      [snapshot_id, project_id, branch_id, source, changes, kind],
    );
    const clone = { name: snapshotDatabaseName(snapshot_id), source, busy_wait, closed: true };
    const { strategy, source_bytes } = await createClone(host, session, clone, onProgress);
    if (strategy !== 'reflink')
      await session.query('UPDATE snapshot SET independent = true WHERE snapshot_id = $1', [snapshot_id]);
    return taken(session, snapshot_id, source_bytes);
  });
}

async function taken(session: Session, snapshotId: string, size_bytes: number) {
  const { rows } = await session.query<{ independent: boolean }>(
    'SELECT independent FROM snapshot WHERE snapshot_id = $1',
    [snapshotId],
  );
  return { taken: true, size_bytes, independent: rows[0]?.independent ?? false };
}

/**
 * Differs after any change of rows, catalogs included. Commits are not counted, because the agent's own
 * sessions commit too. After a crash PostgreSQL counts from 0 again, which differs as well. What a session
 * has changed in the last seconds may not be counted yet; the next snapshot has it.
 */
export async function readChanges(db: Queryable, database: string): Promise<string | null> {
  const { rows } = await db.query<{ changes: string | null }>(
    `SELECT nullif(concat_ws(' ', datid, tup_inserted, tup_updated, tup_deleted, stats_reset, pg_postmaster_start_time()), '')
       AS changes
     FROM pg_stat_database WHERE datname = $1`,
    [database],
  );
  return rows[0]?.changes ?? null;
}

export async function changesAt(session: Session, snapshotId: string | null): Promise<string | null> {
  const { rows } = await session.query<{ changes: string | null }>(
    'SELECT changes FROM snapshot WHERE snapshot_id = $1',
    [snapshotId],
  );
  return rows[0]?.changes ?? null;
}
