import { pollUntil } from '../poll-until.ts';
import type { Queryable } from './connect.ts';

const POLL_EVERY_MS = 10;

/**
 * Ends the sessions of `selection` and waits until they have ended. All of them are signalled before any is waited for:
 * PostgreSQL's own wait takes up to 100 ms for each. Sessions that begin meanwhile are left alone.
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
  return rows.length === 0 || (await pollUntil(haveEnded, { within, every: POLL_EVERY_MS })) === true;
}
