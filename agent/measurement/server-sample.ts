import type { Queryable, Session } from '../postgres/connect.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { type Statistics, type Totals, ZERO_TOTALS } from './counters.ts';
import type { ProcessSample, SeenProcess } from './cpu-account.ts';
import { readProcessTimes } from './process-times.ts';

/** PostgreSQL's activity at one instant. */
export interface ServerSample extends ProcessSample {
  /** Sessions over the network, by the database's oid. */
  direct: Map<string, number>;
  /** Oids of databases with an open transaction. */
  inTransaction: Set<string>;
  /** Process ids of sessions and their parallel workers, by the database's oid. */
  sessions: Map<string, number[]>;
  /** Milliseconds of the longest running statement, by the database's oid. */
  longest: Map<string, number>;
}

interface ActivityRow {
  pid: number;
  database: string | null;
  backend_type: string;
  over_network: boolean;
  in_transaction: boolean;
  active_ms: number;
  own: boolean;
}

/** Reads the function below `pg_stat_activity`, because the view joins names that are not needed here. */
const ACTIVITY = `
  SELECT pid, nullif(datid, 0)::text AS database, backend_type, client_addr IS NOT NULL AS over_network,
         xact_start IS NOT NULL AS in_transaction, pid = pg_backend_pid() AS own,
         CASE WHEN state = 'active'
           THEN greatest(0, extract(epoch FROM clock_timestamp() - query_start) * 1000) ELSE 0 END::float8 AS active_ms
  FROM pg_stat_get_activity(NULL)`;

const KINDS: Record<string, SeenProcess['kind']> = {
  'client backend': 'client',
  'parallel worker': 'parallel worker',
};

/** Samples all processes of the server, and the CPU time that each has used. */
export async function sampleServer(session: Session): Promise<ServerSample> {
  const { rows } = await session.query<ActivityRow>(ACTIVITY);
  const processes: SeenProcess[] = [];
  const direct = new Map<string, number>();
  const inTransaction = new Set<string>();
  const sessions = new Map<string, number[]>();
  const longest = new Map<string, number>();
  let postmasterPid = 0;
  for (const { pid, database, backend_type, over_network, in_transaction, active_ms, own } of rows) {
    const kind = KINDS[backend_type] ?? 'other';
    if (database !== null && kind === 'client' && over_network) {
      direct.set(database, (direct.get(database) ?? 0) + 1);
    }
    if (database !== null && in_transaction) inTransaction.add(database);
    if (database !== null && kind !== 'other' && !own) {
      sessions.set(database, [...(sessions.get(database) ?? []), pid]);
      longest.set(database, Math.max(longest.get(database) ?? 0, active_ms));
    }
    const times = readProcessTimes(pid);
    if (!times) continue;
    if (own) postmasterPid = times.parent;
    const key = `${pid} ${times.startedAt}`;
    processes.push({ key, database, kind, cpu: times.cpu, activeMs: own ? 0 : active_ms });
  }
  // Read last: a process that ended since the query is in this sum, or in the next one.
  const postmaster = readProcessTimes(postmasterPid);
  if (!postmaster)
    throw new Error("PostgreSQL's processes are not visible in /proc: mount it without hidepid");
  return {
    at: performance.now(),
    postmaster: `${postmasterPid} ${postmaster.startedAt}`,
    ended: postmaster.childrenCpu,
    processes,
    direct,
    inTransaction,
    sessions,
    longest,
  };
}

/** A branch whose usage is measured, which begins with its proof. */
export interface MeasuredBranch {
  project_id: string;
  branch_id: string;
  /** Null before its first measurement. */
  seen: Statistics | null;
  totals: Totals;
}

export interface MeasuredDatabase {
  name: string;
  statistics: Statistics;
  branch: MeasuredBranch | null;
}

/** The columns of `Statistics`; times in milliseconds. */
const STATISTICS = `
  stat.datid::text AS database, stat.stats_reset::text AS database_reset,
  server.started AS server_started, server.reset AS shared_reset,
  xact_commit::float8 AS committed, xact_rollback::float8 AS rolled_back, tup_fetched::float8 AS fetched,
  tup_inserted::float8 AS inserted, tup_updated::float8 AS updated, tup_deleted::float8 AS deleted,
  blks_hit::float8 AS blocks_hit, blks_read::float8 AS blocks_read, sessions::float8 AS sessions,
  session_time AS session_ms, active_time AS active_ms, parallel_workers_launched::float8 AS parallel_workers`;

const SERVER = `(
  SELECT (SELECT min(backend_start)::text FROM pg_stat_get_activity(NULL) WHERE backend_type = 'checkpointer') AS started,
         (SELECT stats_reset::text FROM pg_stat_archiver) AS reset)`;

type Row = Statistics & { name: string } & (MeasuredBranch | { [Field in keyof MeasuredBranch]: null });

/** The statistics of every database with its branch's stored usage, in one statement. */
export async function readDatabaseStatistics(session: Session): Promise<MeasuredDatabase[]> {
  const { rows } = await session.query<Row>(
    `SELECT stat.datname AS name, ${STATISTICS},
            branch.project_id, usage.branch_id, usage.seen, usage.totals
     FROM ${SERVER} AS server, pg_stat_database AS stat
     LEFT JOIN branch ON branch.database = stat.datname
     LEFT JOIN branch_usage AS usage ON usage.branch_id = branch.branch_id AND usage.totals IS NOT NULL
     WHERE stat.datid <> 0
     ORDER BY stat.datname`,
  );
  return rows.map(({ name, project_id, branch_id, seen, totals, ...statistics }) => ({
    name,
    statistics,
    branch: branch_id === null ? null : { project_id, branch_id, seen, totals },
  }));
}

/** What prevents sizing one database: `query_canceled`, here by `statement_timeout`; `undefined_object` if it was just dropped. */
const OF_ONE_DATABASE: unknown[] = ['57014', '42704'];

/**
 * Sizes in bytes by oid. A database is missing when it was just dropped, or when its number of files makes sizing it
 * exceed the statement timeout: a tenant that creates them must not prevent the measurement of others.
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

/** Stores the database's present statistics as the zero of its usage, once: the branch's creation is not usage. */
export const setBaseline = (db: Queryable, branchId: string) =>
  db.query(
    `UPDATE branch_usage SET totals = $2, seen = to_jsonb(now)
     FROM (SELECT ${STATISTICS}
           FROM ${SERVER} AS server, pg_stat_database AS stat JOIN branch ON branch.database = stat.datname
           WHERE branch.branch_id = $1) AS now
     WHERE branch_id = $1 AND totals IS NULL`,
    [branchId, JSON.stringify(ZERO_TOTALS)],
  );
