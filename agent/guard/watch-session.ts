import { readFileSync } from 'node:fs';
import { uptime } from 'node:os';
import { join } from 'node:path';
import { readProcessTimes } from '../measurement/server-sample.ts';
import { AGENT_ADDRESS, type OwnSession, openPlatformSession } from '../postgres/connect.ts';
import type { SeenProcess } from '../postgres/tenant-code.ts';
import type { AgentSettings } from '../process/settings.ts';
import type { AutovacuumWorker, Observation, TenantSession } from './guard.ts';

/** How long the catalogs stay locked: an operator's REINDEX of one of them waits no longer. */
const HOLD_FOR_MS = 60_000;
/**
 * With more locks than this on the server, the catalogs are not released: there may be no room to lock them
 * again.
 */
const MANY_LOCKS = 20_000;

/** An operator's timeouts must not end the session. */
const UNLIMITED = `
  SET idle_in_transaction_session_timeout = 0; SET transaction_timeout = 0; SET statement_timeout = 0;
  SET lock_timeout = '1s'`;

/** Locks every catalog with its indexes: planning a query on a table opens all of its indexes. */
const HOLD_CATALOGS = `
  DO $$ DECLARE catalog regclass; BEGIN
    FOR catalog IN
      SELECT oid FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r'
    LOOP
      EXECUTE format('SELECT FROM %s LIMIT 0', catalog);
    END LOOP;
  END $$`;

/**
 * Functions instead of the views over them, which join tables. A transaction sees one snapshot of the
 * activity.
 */
const READ = `
  SELECT pg_stat_clear_snapshot();
  SELECT pid, datid::text AS database, extract(epoch FROM backend_start)::float8 AS begun,
         coalesce(greatest(0, extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 AS transaction_seconds,
         held.transaction, backend_xid IS NOT NULL AS has_id, held.newest_id, held.ids,
         state = 'active' OR backend_type <> 'client backend' AS is_active,
         backend_type AS backend, CASE WHEN usesysid <> 0 THEN pg_get_userbyid(usesysid)::text END AS login,
         CASE WHEN client_addr IS NULL THEN 'local' WHEN client_addr = '${AGENT_ADDRESS}' THEN 'agent' ELSE 'network' END AS way,
         coalesce(held.locks, 0)::float8 AS locks
  FROM pg_stat_get_activity(NULL) LEFT JOIN (
    SELECT pid, count(*) AS locks,
           max(split_part(virtualtransaction, '/', 2)::float8) FILTER (WHERE locktype = 'virtualxid') AS transaction,
           max(transactionid::text::float8)
             FILTER (WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock') AS newest_id,
           array_agg(transactionid::text::float8)
             FILTER (WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock') AS ids
    FROM pg_lock_status() GROUP BY pid
  ) AS held USING (pid)
  WHERE datid <> 0 AND backend_type <> 'walsender'
    -- An autovacuum worker has the superuser's id, and runs code of tenants all the same.
    AND (backend_type <> 'client backend'
      OR usesysid <> (SELECT usesysid FROM pg_stat_get_activity(pg_backend_pid()))
      -- Those of another host, to which a project moves, are no client's.
      AND pg_get_userbyid(usesysid) !~ '^mv_[0-9a-f]{32}$');
  SELECT activity.pid, activity.datid::text AS database, extract(epoch FROM backend_start)::float8 AS begun,
         coalesce(greatest(0, extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 AS transaction_seconds,
         progress.pid IS NOT NULL OR query LIKE 'autovacuum: BRIN %' AS is_analysing,
         CASE WHEN wait_event = 'PgSleep' THEN 'asleep' WHEN wait_event_type = 'Lock' THEN 'locked out' END AS wait,
         coalesce(locked.relations, '{}') AS relations
  FROM pg_stat_get_activity(NULL) AS activity
  LEFT JOIN pg_stat_get_progress_info('ANALYZE') AS progress USING (pid)
  LEFT JOIN (
    SELECT pid, array_agg(relation::text::float8) AS relations FROM pg_lock_status()
    WHERE locktype = 'relation' AND mode = 'ShareUpdateExclusiveLock' GROUP BY pid
  ) AS locked USING (pid)
  WHERE backend_type = 'autovacuum worker' AND activity.datid <> 0;
  SELECT current_setting('autovacuum_max_workers')::int AS workers_max,
         current_setting('max_connections')::int AS connections,
         current_setting('superuser_reserved_connections')::int + current_setting('reserved_connections')::int AS reserved,
         (SELECT next_multi_offset::text::float8 FROM pg_control_checkpoint()) AS member_offset,
         pg_backend_pid() AS pid, pg_notification_queue_usage() AS share,
         pg_snapshot_xmax(pg_current_snapshot())::text::float8 AS next_id`;

/** SQL: the id at the end of the name of an operation's database, or null. */
export const ID_IN_NAME = "substring(datname from '[0-9a-f]{32}$')::uuid";

/** By an index: a host has thousands of databases. */
const READ_NAMES = `
  SELECT pg_database.oid::text AS oid, datname::text AS database, ${ID_IN_NAME} AS id, description AS comment
  FROM pg_database LEFT JOIN pg_shdescription ON objoid = pg_database.oid AND classoid = pg_database.tableoid
  WHERE pg_database.oid = ANY ($1::oid[])`;

/** A database, as the catalogs have it. */
export interface ReadName {
  oid: string;
  database: string;
  /** Null if the name has none. */
  id: string | null;
  /** The comment of the database. */
  comment: string | null;
}

interface SessionRow {
  pid: number;
  database: string;
  begun: number;
  transaction_seconds: number;
  transaction: number | null;
  has_id: boolean;
  newest_id: number | null;
  ids: number[] | null;
  is_active: boolean | null;
  locks: number;
  backend: string;
  login: string | null;
  way: SeenProcess['way'];
}

interface WorkerRow {
  pid: number;
  database: string;
  begun: number;
  transaction_seconds: number;
  is_analysing: boolean;
  wait: AutovacuumWorker['wait'];
  relations: number[];
}

interface ServerRow {
  workers_max: number;
  connections: number;
  reserved: number;
  member_offset: number;
  pid: number;
  share: number;
  next_id: number;
}

type Results = [unknown, { rows: SessionRow[] }, { rows: WorkerRow[] }, { rows: [ServerRow] }];

/** A process without its branch, and the database that it is in. */
type InDatabase<T> = Omit<T, 'branch'> & { database: string };

/** Without its kind, which the name of the database decides. */
export type ReadSession = Omit<InDatabase<TenantSession>, 'kind'> & Omit<SeenProcess, 'database'>;

/** What the session reads, and what identifies the processes that it saw. */
export interface Reading extends Omit<Observation, 'sessions' | 'workers'> {
  sessions: ReadSession[];
  workers: InDatabase<AutovacuumWorker>[];
  postmaster: number;
  /** Every process that was seen began before this time. In the kernel's ticks since the machine started. */
  seenAt: number;
}

const TICKS_PER_SECOND = 100;

/**
 * The session in which the server is watched. When a tenant has filled the lock table, nobody can log in, and
 * a statement that needs a lock fails. This session is open before that, and its open transaction holds the
 * lock of every catalog that a statement may look up. A lock that a session holds it can take again without
 * the table.
 */
export class WatchSession {
  readonly #settings: AgentSettings;
  #session: OwnSession | null = null;
  #releaseAt = 0;
  #locks = 0;

  constructor(settings: AgentSettings) {
    this.#settings = settings;
  }

  /** @throws what PostgreSQL reports */
  async read(): Promise<Reading> {
    const session = await this.#opened();
    const seenAt = Math.floor(uptime() * TICKS_PER_SECOND);
    try {
      // Statements sent together have one result each, which the types of `pg` do not know.
      const results = (await session.query(READ)) as unknown as Results;
      const [, { rows: sessions }, { rows: workers }, { rows: servers }] = results;
      const [server] = servers;
      this.#locks = sessions.reduce((sum, { locks }) => sum + locks, 0);
      return {
        at: performance.now(),
        sessions: sessions.map(toSession),
        workers: workers.map(toWorker),
        connections: { max: server.connections, reserved: server.reserved },
        workersMax: server.workers_max,
        memberOffset: server.member_offset,
        nextId: server.next_id,
        notificationShare: server.share,
        postmaster: readProcessTimes(server.pid)?.parent ?? 0,
        seenAt,
      };
    } catch (error) {
      throw this.#failed(error);
    }
  }

  /**
   * Names and comments of databases, which the locked catalogs show while nobody else can read them.
   * @param oids of databases
   * @throws what PostgreSQL reports
   */
  async readNames(oids: readonly string[]): Promise<ReadName[]> {
    const session = await this.#opened();
    try {
      return (await session.query<ReadName>(READ_NAMES, [oids])).rows;
    } catch (error) {
      throw this.#failed(error);
    }
  }

  /** The transaction has failed, and with it the locks are gone. The session stays: it may be the last one. */
  #failed(error: unknown): unknown {
    this.#releaseAt = 0;
    this.#locks = 0;
    return error;
  }

  async close(): Promise<void> {
    await this.#session?.end();
  }

  async #opened(): Promise<OwnSession> {
    if (!this.#session) {
      this.#releaseAt = 0;
      const session = await openPlatformSession(this.#settings, () => {
        this.#session = null;
      });
      await session.query(UNLIMITED);
      this.#session = session;
    }
    if (performance.now() >= this.#releaseAt && this.#locks < MANY_LOCKS) await this.#hold(this.#session);
    return this.#session;
  }

  async #hold(session: OwnSession): Promise<void> {
    await session.query('ROLLBACK');
    // Reading mostly needs no more than the caches have, so it continues without the locks.
    const hold = session.query(`BEGIN; ${HOLD_CATALOGS}`);
    await hold.then(
      () => {
        this.#releaseAt = performance.now() + HOLD_FOR_MS;
      },
      () => session.query('ROLLBACK'),
    );
  }
}

const toSession = (row: SessionRow): ReadSession => ({
  pid: row.pid,
  key: `${row.pid} ${row.begun}`,
  database: row.database,
  begun: row.begun,
  transactionSeconds: row.transaction_seconds,
  transaction: row.transaction,
  hasId: row.has_id,
  newestId: row.newest_id,
  ids: row.ids ?? [],
  isActive: row.is_active === true,
  locks: row.locks,
  backend: row.backend,
  login: row.login,
  way: row.way,
});

const toWorker = (row: WorkerRow): InDatabase<AutovacuumWorker> => ({
  pid: row.pid,
  key: `${row.pid} ${row.begun}`,
  database: row.database,
  begun: row.begun,
  transactionSeconds: row.transaction_seconds,
  isAnalysing: row.is_analysing,
  wait: row.wait,
  relations: row.relations,
});

/** Whether this process may end PostgreSQL's sessions. */
export function canGuard({ PGDATA_DIR }: Pick<AgentSettings, 'PGDATA_DIR'>): boolean {
  try {
    const pid = Number(readFileSync(join(PGDATA_DIR, 'postmaster.pid'), 'utf8').split('\n')[0]);
    // Signal 0 is a test.
    return pid > 0 && process.kill(pid, 0);
  } catch {
    return false;
  }
}
