import { readFile } from 'node:fs/promises';
import { branchOfLogin } from '../../shared/branch/login.ts';
import { pollUntil } from '../process/loops.ts';
import type { Queryable } from './connect.ts';

const POLL_ENDING_EVERY_MS = 10;

/**
 * Ends the sessions of `selection` and waits until they have ended. All of them are signalled before any is
 * waited for: PostgreSQL's own wait takes up to 100 ms for each. Sessions that begin meanwhile are left
 * alone.
 * @param selection `FROM` and `WHERE` of a query on `pg_stat_activity`
 * @returns whether all have ended in time
 */
export async function endSessions(
  db: Queryable,
  selection: string,
  values: unknown[],
  { within }: { within: number },
): Promise<boolean> {
  // A transaction sees the activity of its first look otherwise.
  const lookAgain = () => db.query('SELECT pg_stat_clear_snapshot()');
  await lookAgain();
  const { rows } = await db.query<{ pid: number; since: string }>(
    `SELECT pid, backend_start::text AS since, pg_terminate_backend(pid) ${selection}`,
    values,
  );
  const signalled = [rows.map(({ pid }) => pid), rows.map(({ since }) => since)];
  const haveEnded = async () => {
    await lookAgain();
    const { rowCount } = await db.query(
      `SELECT FROM pg_stat_activity JOIN unnest($1::int[], $2::timestamptz[]) AS signalled (pid, since) USING (pid)
       WHERE backend_start = since`,
      signalled,
    );
    return rowCount === 0;
  };
  return rows.length === 0 || (await pollUntil(haveEnded, { within, every: POLL_ENDING_EVERY_MS })) === true;
}

const POLL_EVERY_MS = 5;

/** Name of the sessions that compare rows. They end at once: a comparison can be repeated. */
export const COMPARING = 'branchgate-difference';

/** Sessions that load what is copied from a database elsewhere. */
export const LOADING = 'branchgate-copy';

/** Sessions that run the statements of a change. */
export const CHANGING_SCHEMA = 'branchgate-change';

/** Name of the sessions that read and change rows for clients. */
export const BROWSING = 'branchgate-rows';
/** The last statement of a session before it waits for the next page. */
export const RESET = 'DISCARD ALL';
/**
 * Waits for the next page, in this process or another one. An operation that needs it opens another one. A
 * session that has just logged in is idle too, but has had no statement: it may be for a change, which
 * nothing repeats.
 */
export const KEPT = `application_name = '${BROWSING}' AND state = 'idle' AND query = '${RESET}'`;
const END_KEPT = { within: 1_000 };

/** Ends the sessions that wait for the next page of rows: they alone are no reason to hold the clients. */
export const endKeptSessions = (db: Queryable, database: string) =>
  endSessions(db, `FROM pg_stat_activity WHERE datname = $1 AND ${KEPT}`, [database], END_KEPT);

/** How recently a session has worked if it counts as busy between two statements. */
const BUSY_WITHIN = '1 second';

/** Whether clients of any database work. Sessions of the agent's own database are no clients. */
export async function hasBusyClients(db: Queryable): Promise<boolean> {
  const { rowCount } = await db.query(
    `SELECT FROM pg_stat_get_activity(NULL) AS session
     WHERE backend_type = 'client backend' AND (state = 'active' OR state_change > clock_timestamp() - interval '${BUSY_WITHIN}')
       AND datid <> (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1`,
  );
  return rowCount !== 0;
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

/** A login over the network that PostgreSQL has not finished. */
export interface ClientLogin {
  pid: number;
  /** When its connection was accepted, as PostgreSQL writes it. */
  since: string;
  /** Milliseconds since then. */
  age: number;
  address: string;
  /** Null when it is unknown. */
  branch_id: string | null;
  /** Whether PostgreSQL waits for the client's password. */
  isAuthenticating: boolean;
}

/**
 * The title of a process: an optional `cluster_name`, login, database, address and stage. PostgreSQL's views
 * show the login only once it is authenticated. The rules admit a client under its branch's login only.
 */
const TITLE = /^postgres: (?:\S+: )?(u_[0-9a-f]{32}_(?:owner|rw|ro)) /;
const AUTHENTICATING = / authentication$/;

/** @param before leaves out later ones; as PostgreSQL writes it */
export async function readClientLogins(db: Queryable, before: string | null = null): Promise<ClientLogin[]> {
  const { rows } = await db.query<Pick<ClientLogin, 'pid' | 'since' | 'age' | 'address'>>(
    `SELECT pid, backend_start::text AS since, host(client_addr) AS address,
            (extract(epoch FROM clock_timestamp() - backend_start) * 1000)::float8 AS age
     FROM pg_stat_activity
     WHERE state = 'starting' AND client_addr IS NOT NULL
       AND ($1::timestamptz IS NULL OR backend_start < $1::timestamptz)`,
    [before],
  );
  return Promise.all(
    rows.map(async (row) => {
      const title = await readTitle(row.pid);
      const [, login] = TITLE.exec(title) ?? [];
      return {
        ...row,
        branch_id: login === undefined ? null : branchOfLogin(login),
        isAuthenticating: AUTHENTICATING.test(title),
      };
    }),
  );
}

const readTitle = (pid: number) =>
  readFile(`/proc/${pid}/cmdline`, 'utf8').then(
    (text) => (text.split('\0', 1)[0] ?? '').trim(),
    () => '',
  );
