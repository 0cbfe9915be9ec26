import type { ProjectSizes } from '../../shared/measurement.ts';
import type { Log } from '../link/dispatch.ts';
import { type OwnSession, openPlatformSession, type Queryable } from '../postgres/connect.ts';
import { temporaryBytes } from '../postgres/file-bytes.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { runLoop } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import type { Statistics } from './counters.ts';
import { readProjectStatistics } from './database-statistics.ts';

interface Known {
  bytes: number;
  /** The statistics' change key when it was sized. */
  key: string;
  /** Number of the round that sized it. */
  round: number;
}

/** Rounds within which an unnoticed change is found, for instance a file that autovacuum truncated. */
const ROUNDS = 120;

/**
 * Sizes of databases. Sizing one reads the metadata of each of its files, which takes a hundred times as long
 * as reading its statistics. A database is therefore sized again only after activity, or during an open
 * transaction.
 */
export class KnownSizes {
  #known = new Map<string, Known>();
  #round = 0;

  /**
   * @param inTransaction databases with an open transaction, whose writes are in no statistics yet
   * @returns the databases to size now
   */
  due(databases: readonly Statistics[], inTransaction: ReadonlySet<string>): string[] {
    this.#round += 1;
    const changed = databases.filter(({ database }) => inTransaction.has(database));
    const unchanged: Statistics[] = [];
    for (const one of databases) {
      if (inTransaction.has(one.database)) continue;
      (this.#known.get(one.database)?.key === changeKey(one) ? unchanged : changed).push(one);
    }
    const sizedIn = ({ database }: Statistics) => this.#known.get(database)?.round ?? 0;
    const oldest = unchanged
      .toSorted((a, b) => sizedIn(a) - sizedIn(b))
      .slice(0, Math.ceil(databases.length / ROUNDS));
    return [...changed, ...oldest].map(({ database }) => database);
  }

  /** Those whose statistics differ from when they were sized, and those of a session whose changes may not be counted yet. */
  changed(databases: readonly Statistics[], active: ReadonlySet<string>): string[] {
    return databases
      .filter((one) => active.has(one.database) || this.#known.get(one.database)?.key !== changeKey(one))
      .map(({ database }) => database);
  }

  /** Records new sizes of some databases. @param databases as given to `changed` */
  add(databases: readonly Statistics[], sizes: ReadonlyMap<string, number>): void {
    for (const one of databases) {
      const bytes = sizes.get(one.database);
      if (bytes !== undefined)
        this.#known.set(one.database, { bytes, key: changeKey(one), round: this.#round });
    }
  }

  /** Records new sizes, and forgets databases that are gone. @param databases as given to `due` */
  record(databases: readonly Statistics[], sizes: ReadonlyMap<string, number>): void {
    this.#known = new Map(
      databases.flatMap((one) => {
        const bytes = sizes.get(one.database);
        if (bytes !== undefined) return [[one.database, { bytes, key: changeKey(one), round: this.#round }]];
        const known = this.#known.get(one.database);
        return known ? [[one.database, known]] : [];
      }),
    );
  }

  bytesOf(database: string): number | undefined {
    return this.#known.get(database)?.bytes;
  }
}

/** Differs after any change of rows, catalogs included, and after any session of a client. */
const changeKey = ({ inserted, updated, deleted, session_ms }: Statistics) =>
  [inserted, updated, deleted, session_ms].join();

/**
 * What prevents sizing one database: `query_canceled`, here by `statement_timeout`; `undefined_object` if it
 * was just dropped.
 */
const OF_ONE_DATABASE: unknown[] = ['57014', '42704'];

/**
 * Sizes in bytes by oid. A database is missing when it was just dropped, or when its number of files makes
 * sizing it exceed the statement timeout: a tenant that creates them must not prevent the measurement of
 * others.
 */
export async function readSizes(
  session: Queryable,
  databases: readonly string[],
): Promise<Map<string, number>> {
  try {
    const { rows } = await session.query<{ oid: string; bytes: string | null }>(
      'SELECT oid::text, pg_database_size(oid) AS bytes FROM pg_database WHERE oid = ANY ($1::oid[])',
      [databases],
    );
    return new Map(rows.flatMap(({ oid, bytes }) => (bytes === null ? [] : [[oid, Number(bytes)]])));
  } catch (error) {
    if (!OF_ONE_DATABASE.includes(sqlState(error))) throw error;
    const sizes: [string, number][] = [];
    if (databases.length > 1)
      for (const database of databases) sizes.push(...(await readSizes(session, [database])));
    return new Map(sizes);
  }
}

/**
 * Bytes by oid of what sources have sent of transactions that have not ended there. PostgreSQL's workers store it in
 * temporary files, outside of the databases and without a limit.
 */
export async function readStreamed(session: Queryable, dataDir: string): Promise<Map<string, number>> {
  const temporary = await temporaryBytes(dataDir);
  const streamed = new Map<string, number>();
  if (temporary.size === 0) return streamed;
  const { rows } = await session.query<{ pid: number; oid: string }>(
    `SELECT pid, datid::text AS oid FROM pg_stat_activity
     WHERE pid = ANY ($1) AND backend_type LIKE 'logical replication%' AND datid IS NOT NULL`,
    [[...temporary.keys()]],
  );
  for (const { pid, oid } of rows) streamed.set(oid, (streamed.get(oid) ?? 0) + (temporary.get(pid) ?? 0));
  return streamed;
}

/**
 * A session counts what it has changed when a transaction ends, once a second at most. The rest follows ten seconds
 * after its last statement, or at its end (`PGSTAT_IDLE_INTERVAL`).
 */
const COUNTED_WITHIN = '15 seconds';

/**
 * Databases with sessions whose changes may not be counted yet. Autovacuum only shrinks files, and the agent's own
 * session changes no tenant's database.
 */
async function readActive(session: Queryable): Promise<Set<string>> {
  const { rows } = await session.query<{ oid: string }>(
    `SELECT DISTINCT datid::text AS oid FROM pg_stat_get_activity(NULL)
     WHERE datid <> 0 AND backend_type <> 'autovacuum worker'
       AND (xact_start IS NOT NULL OR state IS DISTINCT FROM 'idle'
         OR state_change > clock_timestamp() - interval '${COUNTED_WITHIN}')`,
  );
  return new Set(rows.map(({ oid }) => oid));
}

/** The present sizes of the projects' finalized databases. The session limits the time of a statement. */
export async function readProjectSizes(
  session: Queryable,
  { dataDir, sizes }: { dataDir: string; sizes: KnownSizes },
  projectIds: readonly string[],
): Promise<ProjectSizes[]> {
  // Read before the statistics: a session that ends between has counted its changes.
  const active = await readActive(session);
  const branches = await readProjectStatistics(session, projectIds);
  const statistics = branches.map((branch) => branch.statistics);
  const changed = sizes.changed(statistics, active);
  if (changed.length > 0) sizes.add(statistics, await readSizes(session, changed));
  const streamed = await readStreamed(session, dataDir);
  return [...Map.groupBy(branches, ({ project_id }) => project_id)].map(([project_id, ofProject]) => ({
    project_id,
    sizes: Object.fromEntries(
      ofProject.flatMap(({ branch_id, statistics: { database } }) => {
        const size = sizes.bytesOf(database);
        return size === undefined ? [] : [[branch_id, size + (streamed.get(database) ?? 0)]];
      }),
    ),
  }));
}

/** Projects whose quota is used up, which deleted data frees. */
async function readWriteBlocked(session: Queryable): Promise<string[]> {
  const { rows } = await session.query<{ project_id: string }>(
    'SELECT project_id FROM project WHERE write_blocked_since IS NOT NULL ORDER BY project_id',
  );
  return rows.map(({ project_id }) => project_id);
}

const POLL_EVERY_MS = 1_000;
/**
 * Share of its time that the watch may spend on reading sizes: a tenant can make that slow with very many
 * files.
 */
const BUSY_SHARE = 0.1;
const STATEMENT_WITHIN_MS = 3_000;

interface Watching {
  settings: AgentSettings;
  sizes: KnownSizes;
  log: Log;
  report: (sizes: ProjectSizes) => void;
  signal: AbortSignal;
}

/**
 * Reports the sizes of each project when it becomes write-blocked, and whenever its databases have shrunk, so
 * that deleted data ends the block immediately (specification 3.2). The regular measurement repeats a report
 * that is lost. Never throws.
 */
export async function watchBlockedProjects({
  settings,
  sizes: known,
  log,
  report,
  signal,
}: Watching): Promise<void> {
  let session = null as OwnSession | null;
  /** Bytes at the last poll, by project. */
  let former = new Map<string, number>();
  const poll = async () => {
    session ??= await openSession(settings, () => {
      session = null;
    });
    const blocked = await readWriteBlocked(session);
    const host = { dataDir: settings.PGDATA_DIR, sizes: known };
    const sizes = blocked.length > 0 ? await readProjectSizes(session, host, blocked) : [];
    const totals = new Map(sizes.map((project) => [project.project_id, totalOf(project)]));
    for (const project of sizes) {
      const { project_id } = project;
      if ((totals.get(project_id) ?? 0) < (former.get(project_id) ?? Number.POSITIVE_INFINITY))
        report(project);
    }
    former = totals;
  };
  const every = (busyMs: number) => Math.max(POLL_EVERY_MS, busyMs / BUSY_SHARE);
  await runLoop(poll, { every, signal, log, failed: 'blocked_projects.unwatched' });
  await session?.end().catch(() => {});
}

async function openSession(settings: AgentSettings, onLost: () => void): Promise<OwnSession> {
  const session = await openPlatformSession(settings, onLost);
  await session.query(`SET statement_timeout = ${STATEMENT_WITHIN_MS}; SET jit = off`);
  return session;
}

const totalOf = ({ sizes }: ProjectSizes) => Object.values(sizes).reduce((sum, bytes) => sum + bytes, 0);
