import type { Rehearsal, RehearsalReport } from '../../shared/protocol/rehearsal-operations.ts';
import { inTransaction, type Pool, type Queryable } from '../postgres/connect.ts';
import { withHostLock, withLocks } from '../postgres/locks.ts';
import { HostError } from '../process/host-error.ts';
import { type LockSummary, NO_SAMPLES } from './lock-record.ts';
import type { WatchedTables } from './watched-tables.ts';

/** A rehearsal samples for no longer, whatever the lease of its branch. */
const SAMPLED_FOR = "interval '1 hour'";
/** At once, on a host and in a project. */
const RUNNING_MAX = 8;
const RUNNING_OF_PROJECT_MAX = 4;
/** Places of a host for the first rehearsal of a project, so that a few projects do not take all. */
const KEPT_FOR_FIRST = 4;

interface StoredRehearsal {
  branch_id: string;
  database: string;
  started_at: Date;
  finished_at: Date | null;
  limits: Rehearsal['limits'];
  tables: WatchedTables;
  schema: string;
  wal_from: string;
  locks: LockSummary;
  report: RehearsalReport | null;
}

export interface NewRehearsal
  extends Pick<StoredRehearsal, 'branch_id' | 'database' | 'limits' | 'tables' | 'schema'> {
  /** Bytes of the database; null if they could not be measured. */
  bytes: number | null;
}

const RUNNING = `report IS NULL AND started_at > now() - ${SAMPLED_FOR}`;

/** @throws HostError HOST_BUSY, PROJECT_BUSY */
export async function requireRoom(db: Queryable, branchId: string): Promise<void> {
  const { rows } = await db.query<{ of_host: string; of_project: string }>(
    `SELECT count(*) AS of_host,
            count(*) FILTER (WHERE project_id = (SELECT project_id FROM branch WHERE branch_id = $1)) AS of_project
     FROM rehearsal JOIN branch USING (branch_id) WHERE branch_id <> $1 AND ${RUNNING}`,
    [branchId],
  );
  const { of_host = 0, of_project = 0 } = rows[0] ?? {};
  if (Number(of_project) >= RUNNING_OF_PROJECT_MAX)
    throw new HostError('PROJECT_BUSY', 'too many rehearsals of this project are running');
  if (Number(of_project) > 0 && Number(of_host) >= RUNNING_MAX - KEPT_FOR_FIRST)
    throw new HostError('PROJECT_BUSY', 'the other places of the host are for projects without a rehearsal');
  if (Number(of_host) >= RUNNING_MAX) throw new HostError('HOST_BUSY', 'too many rehearsals are running');
}

/**
 * Stores it if there is room, one after the other if several begin together.
 * @throws HostError HOST_BUSY, PROJECT_BUSY
 */
export const beginRehearsal = (sessions: Pool, rehearsal: NewRehearsal): Promise<void> =>
  withLocks(sessions, [], (session) =>
    withHostLock(session, 'rehearsals', () =>
      inTransaction(session, async () => {
        await requireRoom(session, rehearsal.branch_id);
        await storeRehearsal(session, rehearsal);
      }),
    ),
  );

/** Replaces an earlier rehearsal of the branch. */
async function storeRehearsal(db: Queryable, rehearsal: NewRehearsal): Promise<void> {
  const { branch_id, database, limits, tables, schema, bytes } = rehearsal;
  const values = [branch_id, database, limits, JSON.stringify(tables), schema, NO_SAMPLES, bytes];
  await db.query(
    `INSERT INTO rehearsal (branch_id, database, limits, tables, schema, locks, bytes, wal_from)
     VALUES ($1, $2, $3, $4, $5, $6, $7, pg_current_wal_insert_lsn())
     ON CONFLICT (branch_id) DO UPDATE SET
       database = excluded.database, started_at = now(), limits = excluded.limits, tables = excluded.tables,
       schema = excluded.schema, locks = excluded.locks, bytes = excluded.bytes, wal_from = excluded.wal_from,
       finished_at = NULL, report = NULL`,
    values,
  );
}

export async function readRehearsal(db: Queryable, branchId: string): Promise<StoredRehearsal | null> {
  const { rows } = await db.query<StoredRehearsal>('SELECT * FROM rehearsal WHERE branch_id = $1', [
    branchId,
  ]);
  return rows[0] ?? null;
}

export interface RunningRehearsal extends Pick<StoredRehearsal, 'branch_id' | 'database' | 'locks'> {
  /** As text, which has microseconds: it distinguishes a rehearsal from the one before it. */
  started_at: string;
  /** The watched tables, as an array of `oid`. */
  relations: string;
}

export async function readRunning(db: Queryable): Promise<RunningRehearsal[]> {
  const { rows } = await db.query<RunningRehearsal>(
    `SELECT branch_id, database, locks, started_at::text,
            ARRAY(SELECT watched ->> 'oid' FROM jsonb_array_elements(tables -> 'tables') AS watched)::text AS relations
     FROM rehearsal WHERE ${RUNNING}`,
  );
  return rows;
}

/** Bytes that each database had when its rehearsal began, also after the hour in which locks are sampled. */
export async function readRehearsedBytes(db: Queryable): Promise<ReadonlyMap<string, number>> {
  const { rows } = await db.query<{ database: string; bytes: number }>(
    'SELECT database, bytes::float8 AS bytes FROM rehearsal WHERE report IS NULL AND bytes IS NOT NULL',
  );
  return new Map(rows.map(({ database, bytes }) => [database, bytes]));
}

/** The sessions that make the report must not be ended for what the migration wrote. */
export async function endGrowthBound(db: Queryable, branchId: string): Promise<void> {
  await db.query('UPDATE rehearsal SET bytes = NULL WHERE branch_id = $1 AND report IS NULL', [branchId]);
}

/** Does nothing when the branch, or this rehearsal of it, is gone. */
export async function storeLocks(
  db: Queryable,
  branchId: string,
  startedAt: string,
  locks: LockSummary,
): Promise<void> {
  await db.query(
    'UPDATE rehearsal SET locks = $3 WHERE branch_id = $1 AND started_at = $2::timestamptz AND report IS NULL',
    [branchId, startedAt, locks],
  );
}

/** What the report no longer needs is deleted. The first of several reports stays. */
export async function storeReport(db: Queryable, branchId: string, report: RehearsalReport): Promise<void> {
  await db.query(
    `UPDATE rehearsal SET report = $2, finished_at = now(), schema = '', tables = '{}', locks = '{}'
     WHERE branch_id = $1 AND report IS NULL`,
    [branchId, JSON.stringify(report)],
  );
}

export const toRehearsal = ({ started_at, finished_at, limits, report }: StoredRehearsal): Rehearsal => ({
  state: report ? 'finished' : 'running',
  started_at: started_at.toISOString(),
  finished_at: finished_at?.toISOString() ?? null,
  limits,
  report,
});
