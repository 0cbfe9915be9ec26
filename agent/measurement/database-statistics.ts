import type { Queryable, Session } from '../postgres/connect.ts';
import { type Statistics, type Totals, ZERO_TOTALS } from './counters.ts';

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

/** The statistics of the projects' finalized databases. */
export async function readProjectStatistics(
  db: Queryable,
  projectIds: readonly string[],
): Promise<{ project_id: string; branch_id: string; statistics: Statistics }[]> {
  const { rows } = await db.query<Statistics & Pick<MeasuredBranch, 'project_id' | 'branch_id'>>(
    `SELECT branch.project_id, branch.branch_id, ${STATISTICS}
     FROM ${SERVER} AS server, branch JOIN pg_stat_database AS stat ON stat.datname = branch.database
     WHERE branch.project_id = ANY ($1)`,
    [projectIds],
  );
  return rows.map(({ project_id, branch_id, ...statistics }) => ({ project_id, branch_id, statistics }));
}

/**
 * Stores the present statistics of these branches' databases as the zero of their usage, once: the creation of a
 * branch is not usage. Each branch and database is looked up by itself. A plan for a list of unknown length reads all
 * branches, if there were few when the table was analyzed.
 */
export const setBaselines = (db: Queryable, branchIds: readonly string[]) =>
  db.query(
    `UPDATE branch_usage SET totals = $2, seen = to_jsonb(now) - 'id'
     FROM (SELECT branch.branch_id AS id, ${STATISTICS}
           FROM ${SERVER} AS server, unnest($1::uuid[]) AS wanted (branch_id),
             LATERAL (SELECT * FROM branch WHERE branch.branch_id = wanted.branch_id OFFSET 0) AS branch,
             LATERAL (SELECT * FROM pg_stat_database WHERE datname = branch.database OFFSET 0) AS stat) AS now
     WHERE branch_id = now.id AND totals IS NULL`,
    [branchIds, JSON.stringify(ZERO_TOTALS)],
  );

/**
 * Rows that updates and deletes have left behind, as a share of all rows of the tenant's tables. Up to 50
 * dead rows of a table do not count, because autovacuum leaves them (`autovacuum_vacuum_threshold`). The
 * statistics of a clone begin with nothing, so the estimate of the planner (`reltuples`) counts if it is
 * higher. PostgreSQL keeps all this per database, so it can be read only in a session there.
 */
export async function readDeadTuples(session: Session): Promise<number | null> {
  await session.query('BEGIN READ ONLY');
  const { rows } = await session.query<{ share: number | null }>(
    `SELECT coalesce(sum(n_dead_tup) FILTER (WHERE n_dead_tup > 50), 0)::float8
              / nullif(sum(greatest(n_live_tup, reltuples) + n_dead_tup), 0)::float8 AS share
     FROM pg_catalog.pg_stat_user_tables AS stat JOIN pg_catalog.pg_class AS class ON class.oid = stat.relid`,
  );
  await session.query('COMMIT');
  return rows[0]?.share ?? null;
}

/** The last known share of dead rows of each branch. */
export class DeadTuples {
  readonly #shares = new Map<string, number>();

  shareOf(branchId: string): number | null {
    return this.#shares.get(branchId) ?? null;
  }

  record(branchId: string, share: number | null): void {
    if (share === null) this.#shares.delete(branchId);
    else this.#shares.set(branchId, share);
  }

  forgetExcept(branchIds: ReadonlySet<string>): void {
    for (const branchId of this.#shares.keys()) if (!branchIds.has(branchId)) this.#shares.delete(branchId);
  }
}
