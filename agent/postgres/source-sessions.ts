import { pollUntil } from '../poll-until.ts';
import type { Queryable } from './connect.ts';
import { endSessions } from './end-sessions.ts';

const POLL_EVERY_MS = 5;

/** A direct session is ended after it was idle for this time, and without that once the patience is over. Milliseconds. */
const IDLE_FOR = 100;
const PATIENCE = 300;

/** Name of the sessions that compare rows. They end at once: a comparison can be repeated. */
export const COMPARING = 'branchgate-difference';

/** Name of the sessions that read and change rows for clients. */
export const BROWSING = 'branchgate-rows';
/** The last statement of a session before it waits for the next page. */
export const RESET = 'DISCARD ALL';
/**
 * Waits for the next page, in this process or another one. An operation that needs it opens another one. A session that
 * has just logged in is idle too, but has had no statement: it may be for a change, which nothing repeats.
 */
export const KEPT = `application_name = '${BROWSING}' AND state = 'idle' AND query = '${RESET}'`;
const END_KEPT = { within: 1_000 };

/** Ends the sessions that wait for the next page of rows: they alone are no reason to hold the clients. */
export const endKeptSessions = (db: Queryable, database: string) =>
  endSessions(db, `FROM pg_stat_activity WHERE datname = $1 AND ${KEPT}`, [database], END_KEPT);

/**
 * Resolves when the database has no session left. Ends autovacuum workers, comparisons, kept sessions and idle direct ones. The
 * pooler's are left to the pooler: one that looks idle may just have been sent the first statement of a transaction.
 * @param wait milliseconds to wait for sessions that cannot be ended
 * @returns whether the database became empty in time, or `signal` was aborted
 */
export async function emptyDatabase(
  db: Queryable,
  database: string,
  { wait, signal }: { wait: number; signal?: AbortSignal },
): Promise<boolean> {
  const started = performance.now();
  const isEmpty = async () => {
    const isPatient = performance.now() - started < PATIENCE;
    const { rows } = await db.query(
      `SELECT CASE WHEN backend_type = 'autovacuum worker'
                     OR application_name = '${COMPARING}' OR (${KEPT})
                     OR (state = 'idle' AND client_addr IS NOT NULL
                         AND clock_timestamp() - state_change >= $2 * interval '1 millisecond')
              THEN pg_terminate_backend(pid) END
       FROM pg_stat_activity WHERE datname = $1`,
      [database, isPatient ? IDLE_FOR : 0],
    );
    return rows.length === 0;
  };
  const emptied = await pollUntil(isEmpty, { within: wait, every: POLL_EVERY_MS, signal });
  return emptied === true || signal?.aborted === true;
}

/** Ends every session of the database, again and again, until `signal` is aborted. */
export async function clearDatabase(db: Queryable, database: string, signal: AbortSignal): Promise<void> {
  const isAborted = async () => {
    await db.query('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1', [database]);
    return false;
  };
  await pollUntil(isAborted, { within: Number.POSITIVE_INFINITY, every: POLL_EVERY_MS, signal });
}

/** Resolves when the session has locked the database against new logins, or when `signal` is aborted. */
export async function lockedBy(
  db: Queryable,
  pid: number,
  database: string,
  signal: AbortSignal,
): Promise<void> {
  const isLocked = async () => {
    const { rows } = await db.query(
      `SELECT FROM pg_locks JOIN pg_database ON pg_database.oid = objid
       WHERE pid = $1 AND locktype = 'object' AND classid = 'pg_database'::regclass AND granted AND datname = $2`,
      [pid, database],
    );
    return rows.length > 0;
  };
  await pollUntil(isLocked, { within: Number.POSITIVE_INFINITY, every: POLL_EVERY_MS, signal });
}
