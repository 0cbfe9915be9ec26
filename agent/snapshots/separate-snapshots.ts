import { isMainDatabase, snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import { type CloneHost, copyUnusedDatabase } from '../cloning/create-clone.ts';
import { identifier, literal, type Pool, type Session } from '../postgres/connect.ts';
import { dropDatabase } from '../postgres/databases.ts';
import { withLocks } from '../postgres/locks.ts';
import type { Log } from '../process/log.ts';
import { runLoop } from '../process/loops.ts';
import { freeBytes } from '../volumes/volumes.ts';
import { copyDatabaseName, dropLeftovers, readSnapshotSize } from './snapshot-databases.ts';

interface SeparationHost extends CloneHost {
  sessions: Pool;
  /** What the gateway knows of this host. */
  known: { outdate: () => void };
  log: Log;
}

const CHECK_EVERY_MS = 5_000;

/** The newest snapshot of the `main` of each project, if it still shares blocks with `main`. */
const SHARING = `
  SELECT snapshot_id, project_id FROM (
    SELECT DISTINCT ON (project_id) snapshot_id, project_id, independent, taken_at FROM snapshot
    WHERE kind = 'taken' AND ${isMainDatabase('source')} ORDER BY project_id, taken_at DESC
  ) AS newest WHERE NOT independent ORDER BY taken_at`;

/**
 * Replaces snapshots that share blocks with `main` by copies: each write to a shared block makes `main` more
 * fragmented, and slower to clone. Nobody waits for the copy, because nobody is connected to a snapshot.
 * @returns how many were replaced
 */
export async function separateSnapshots(host: SeparationHost): Promise<number> {
  const { rows } = await host.postgres.query<{ snapshot_id: string }>(SHARING);
  let separated = 0;
  const failures: unknown[] = [];
  for (const { snapshot_id } of rows) {
    const separation = withLocks(host.sessions, [`clone:${snapshot_id}`], (session) =>
      separate(host, session, snapshot_id),
    );
    // One project's snapshot that cannot be copied does not hold up the others.
    separated += await separation.catch((error) => {
      failures.push(error);
      return 0 as const;
    });
  }
  if (failures.length > 0) throw failures[0];
  return separated;
}

async function separate(host: SeparationHost, session: Session, snapshotId: string): Promise<0 | 1> {
  const { settings, log } = host;
  const size = await readSnapshotSize(session, snapshotId);
  const room = size === null ? 0 : size * settings.SNAPSHOT_COPY_ROOM;
  if (size === null || room === 0 || (await freeBytes(settings.PGDATA_DIR)) < room) return 0;
  const snapshot = snapshotDatabaseName(snapshotId);
  const copy = copyDatabaseName(snapshotId);
  await dropDatabase(session, copy);
  const started = performance.now();
  try {
    await copyUnusedDatabase(host, session, { name: copy, source: snapshot, closed: true });
  } catch (error) {
    await dropDatabase(session, copy);
    throw error;
  }
  const [name, other, between] = [snapshot, copy, `${copy}_`].map(identifier);
  // Statements that are sent together are one transaction.
  await session.query(
    `ALTER DATABASE ${name} RENAME TO ${between};
     ALTER DATABASE ${other} RENAME TO ${name};
     ALTER DATABASE ${between} RENAME TO ${other};
     UPDATE snapshot SET independent = true WHERE snapshot_id = ${literal(snapshotId)}`,
  );
  host.known.outdate();
  await dropDatabase(session, copy);
  log('snapshot.independent', { snapshot_id: snapshotId, ms: Math.round(performance.now() - started) });
  return 1;
}

/** On a host that copies every block each snapshot is independent from the start. */
export async function runSeparationLoop(host: SeparationHost, signal: AbortSignal): Promise<void> {
  const separateAll = async () => {
    // What a full disk kept from being dropped before, and what a statement of a killed agent made after its end.
    await dropLeftovers(host);
    if (host.cloneMethod === 'reflink') await separateSnapshots(host);
  };
  const events = { failed: 'snapshot.not_copied', recovered: 'snapshot.copied_again' };
  await runLoop(separateAll, { every: CHECK_EVERY_MS, signal, log: host.log, ...events });
}
