import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { SNAPSHOT_DATABASE } from '../../shared/branch/database-name.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { collationRemedy, IS_OUTDATED } from '../postgres/collations.ts';
import { identifier, type Queryable, type Session } from '../postgres/connect.ts';
import { bytesOf, countFiles } from '../postgres/file-bytes.ts';
import { endKeptSessions, KEPT } from '../postgres/sessions.ts';
import { HostError } from '../process/host-error.ts';
import type { OnProgress } from '../process/progress.ts';
import type { CopyRoom } from './copy-room.ts';
import { cloneLive, type PausingHost } from './live-source.ts';

/** How a clone is made: by sharing the source's blocks (reflink), or by copying each of them. */
export type CloneMethod = 'reflink' | 'copy';

/** What it takes to clone a database. */
export interface CloneHost extends PausingHost {
  cloneMethod: CloneMethod;
  copyRoom: CopyRoom;
  spares: {
    /** Gives spares of the snapshot these names. @returns those for which there was one */
    take: (session: Session, source: string, names: readonly string[]) => Promise<string[]>;
  };
  following: {
    /** Holds a branch still if it follows a database elsewhere. @returns a function that lets it continue */
    pause: (session: Session, source: string) => Promise<() => Promise<void>>;
  };
  metrics: PausingHost['metrics'] & { countClone: (strategy: Strategy, ms: number) => void };
}

const POLL_EVERY_MS = 500;

/**
 * Reports the size of the directory that appears below `base/` while a database is copied. PostgreSQL does
 * not show the new database's oid before it is complete. With two concurrent copies the size may be the other
 * one's, which is good enough for a progress line.
 * @returns a function that stops the reports
 */
async function watchCopy(dataDir: string, total: number, onProgress?: OnProgress): Promise<() => void> {
  if (!onProgress) return () => {};
  const base = join(dataDir, 'base');
  const before = new Set(await readdir(base));
  let isOver = false;
  const timer = setInterval(async () => {
    const fresh = (await readdir(base).catch(() => [])).filter((name) => !before.has(name)).at(-1);
    const size = fresh ? await bytesOf(join(base, fresh)) : 0;
    if (fresh && total > 0 && !isOver) onProgress(size / total);
  }, POLL_EVERY_MS);
  return () => {
    isOver = true;
    clearInterval(timer);
  };
}

/** The source of a clone, and a position in the WAL before it was copied. */
export interface Origin {
  name: string;
  source: string;
  source_lsn: string;
}

/**
 * Records where a new clone comes from. If the agent is killed before, comparisons of this database are only
 * slower. The same if the name belongs to another database since: a reset may have replaced the source before
 * it was copied.
 */
export const recordOrigin = (
  session: Queryable,
  clone: string,
  { name, source, source_lsn }: Origin,
  byFile: boolean,
) =>
  session.query(
    `INSERT INTO database_origin (oid, source, source_lsn, lsn, by_file)
     SELECT oid, $2, $3, pg_current_wal_insert_lsn(), $4 FROM pg_database
     WHERE datname = $1 AND EXISTS (SELECT FROM pg_database WHERE oid = $2 AND datname = $5)
     ON CONFLICT (oid) DO UPDATE
     SET (source, source_lsn, lsn, by_file) = (excluded.source, excluded.source_lsn, excluded.lsn, excluded.by_file)`,
    [clone, source, source_lsn, byFile, name],
  );

/** Forgets dropped databases without clones, from the youngest to the oldest. */
export const forgetOrigins = (db: Queryable) =>
  db.query(
    `DELETE FROM database_origin AS origin
     WHERE NOT EXISTS (SELECT FROM pg_database WHERE pg_database.oid = origin.oid)
       AND NOT EXISTS (SELECT FROM database_origin AS clone WHERE clone.source = origin.oid)`,
  );

type CloneResult = MethodResult<'branch.clone'>;
type Strategy = NonNullable<CloneResult['strategy']>;

/** A spare is a reflink, made before. */
const TAKEN: CloneResult = {
  created: true,
  created_by: 'spare',
  strategy: 'reflink',
  clone_ms: 0,
  paused_ms: 0,
  source_bytes: 0,
};

/** How `CREATE DATABASE` runs, by the strategy's name in the result. */
const STRATEGIES: Record<Strategy, { strategy: string; fileCopyMethod: string }> = {
  reflink: { strategy: 'FILE_COPY', fileCopyMethod: 'clone' },
  file_copy: { strategy: 'FILE_COPY', fileCopyMethod: 'copy' },
  wal_log: { strategy: 'WAL_LOG', fileCopyMethod: 'copy' },
};

/**
 * Up to this size the two checkpoints of a file copy cost other tenants more than logging every block does.
 */
const WAL_LOG_UP_TO_BYTES = 48 * 1024 * 1024;

const EMPTY_TEMPLATE = 'template0';

function strategyFor(method: CloneMethod, sourceBytes: number): Strategy {
  if (method === 'reflink') return 'reflink';
  return sourceBytes <= WAL_LOG_UP_TO_BYTES ? 'wal_log' : 'file_copy';
}

/** What is created: a database from a source, or from the empty template. */
interface NewClone {
  name: string;
  source: string | null;
  /** Not even a superuser can connect to it. */
  closed?: boolean;
}

/**
 * Creates a database from the source, or an empty one for `main`. No client can connect to it yet. Nobody is
 * connected to a snapshot, so nobody is held while it is cloned; if it has a spare, that is renamed instead.
 * @throws HostError SOURCE_BUSY, SOURCE_MISSING, POOLER_UNAVAILABLE, HOST_FULL
 */
export async function createClone(
  host: CloneHost,
  session: Session,
  { busy_wait: busyWait, ...clone }: NewClone & Pick<Params<'branch.clone'>, 'busy_wait'>,
  onProgress?: OnProgress,
): Promise<CloneResult> {
  const { source } = clone;
  const began = performance.now();
  if (source !== null && (await host.spares.take(session, source, [clone.name])).length > 0)
    return { ...TAKEN, clone_ms: performance.now() - began };
  const { sourceBytes, origin, ...sessions } = await inspectSource(session, source ?? EMPTY_TEMPLATE);
  const inUse = sessions.inUse || (sessions.kept && !(await endKeptSessions(session, origin.name)));
  const strategy = strategyFor(host.cloneMethod, sourceBytes);
  const creating = await prepareCreation(host, session, clone, {
    strategy,
    sourceBytes,
    oid: origin.source,
    onProgress,
  });
  let cloneMs = 0;
  const create = async () => {
    const started = performance.now();
    await creating();
    cloneMs = performance.now() - started;
  };
  let pausedMs = 0;
  if (source === null || SNAPSHOT_DATABASE.test(source)) {
    await create();
  } else {
    // Leaves less to write for the checkpoint inside CREATE DATABASE, during which clients are held.
    if (inUse && strategy !== 'wal_log') await session.query('CHECKPOINT');
    // The pooler waits only seconds for a login to PostgreSQL, so a long copy holds the clients from its
    // start.
    const hold = inUse || strategy === 'file_copy';
    const resume = await host.following.pause(session, source);
    try {
      pausedMs = await cloneLive(host, session, { source, hold, busyWait, create });
    } finally {
      await resume();
    }
  }
  if (source !== null) await recordOrigin(session, clone.name, origin, strategy !== 'wal_log');
  return {
    created: true,
    created_by: 'clone',
    strategy,
    clone_ms: cloneMs,
    paused_ms: pausedMs,
    source_bytes: sourceBytes,
  };
}

/** Creates a database from one that no client can use. @throws HostError SOURCE_MISSING, HOST_FULL */
export async function createUnusedClone(
  host: CloneHost,
  session: Session,
  clone: NewClone & { source: string },
  onProgress?: OnProgress,
  chosen?: Strategy,
): Promise<void> {
  const { sourceBytes, origin } = await inspectSource(session, clone.source);
  const strategy = chosen ?? strategyFor(host.cloneMethod, sourceBytes);
  const create = await prepareCreation(host, session, clone, {
    strategy,
    sourceBytes,
    oid: origin.source,
    onProgress,
  });
  await create();
  await recordOrigin(session, clone.name, origin, strategy !== 'wal_log');
}

/**
 * Copies every block of a database that no client can use, so that the copy shares none.
 * @throws HostError SOURCE_MISSING, HOST_FULL
 */
export const copyUnusedDatabase = (
  host: CloneHost,
  session: Session,
  clone: NewClone & { source: string },
): Promise<void> => createUnusedClone(host, session, clone, undefined, 'file_copy');

/**
 * Does what can be done before the clients of the source are held.
 * @returns a function that creates the database
 */
async function prepareCreation(
  { copyRoom, metrics, settings }: CloneHost,
  session: Session,
  { name, source, closed = false }: NewClone,
  {
    strategy,
    sourceBytes,
    oid,
    onProgress,
  }: {
    strategy: Strategy;
    sourceBytes: number;
    /** Of the source. */
    oid: string;
    onProgress?: OnProgress | undefined;
  },
): Promise<() => Promise<void>> {
  const how = STRATEGIES[strategy];
  await copyRoom.requireInodes(await countFiles(settings.PGDATA_DIR, oid));
  await session.query(`SET file_copy_method = ${how.fileCopyMethod}`);
  const create = async () => {
    // Only a copy of each block takes long.
    const watched = strategy === 'file_copy' ? onProgress : undefined;
    const stopWatching = await watchCopy(settings.PGDATA_DIR, sourceBytes, watched);
    const started = performance.now();
    const created = session.query(
      `CREATE DATABASE ${identifier(name)} TEMPLATE ${identifier(source ?? EMPTY_TEMPLATE)}
       STRATEGY ${how.strategy} CONNECTION LIMIT 0 ALLOW_CONNECTIONS ${!closed}`,
    );
    await created.finally(stopWatching);
    metrics.countClone(strategy, performance.now() - started);
  };
  // The quota bounds the sum of a project's branches, but not of its snapshots.
  if (closed || strategy === 'file_copy')
    return () => copyRoom.during(strategy === 'reflink' ? 0 : sourceBytes, create);
  return create;
}

/**
 * Size of a database, which client sessions it has, and what its clones come from. `kept` ones wait for the
 * next page of rows; any other ones use it. @throws HostError SOURCE_MISSING, COLLATION_OUTDATED
 */
async function inspectSource(session: Session, database: string) {
  const { rows } = await session.query<
    Origin & { bytes: string; in_use: boolean | null; kept: boolean | null; is_outdated: boolean }
  >(
    `SELECT datname::text AS name, oid::text AS source, pg_current_wal_insert_lsn()::text AS source_lsn,
            pg_database_size(oid) AS bytes, in_use, kept, ${IS_OUTDATED} AS is_outdated
     FROM pg_database CROSS JOIN LATERAL (
       SELECT bool_or((${KEPT}) IS NOT TRUE) AS in_use, bool_or(${KEPT}) AS kept
       FROM pg_stat_activity WHERE datid = pg_database.oid AND backend_type = 'client backend'
     ) AS sessions
     WHERE datname = $1`,
    [database],
  );
  if (!rows[0]) throw new HostError('SOURCE_MISSING', `there is no database ${database}`);
  const { bytes, in_use, kept, is_outdated, ...origin } = rows[0];
  // PostgreSQL would refuse each attempt.
  if (is_outdated)
    throw new HostError(
      'COLLATION_OUTDATED',
      `${database} was made with another version of its collation: ${collationRemedy(database)}`,
    );
  return { sourceBytes: Number(bytes), inUse: in_use === true, kept: kept === true, origin };
}
