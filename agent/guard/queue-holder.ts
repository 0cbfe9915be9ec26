import type { Pool } from '../postgres/connect.ts';

/** PostgreSQL takes a lock of the whole server to send a notification. */
const ASK = "SET LOCAL lock_timeout = '1s'; SELECT pg_notify('branchgate', '')";

/**
 * Asks PostgreSQL for a listener that holds the queue of NOTIFY up. No view shows it. PostgreSQL warns a session that sends
 * a notification while at least half of the queue is in use, and names one of the processes that have read least. It
 * warns once in five seconds on the whole server, so most calls learn nothing.
 * @returns the number of its process, or null
 * @throws what PostgreSQL reports, unless it has named a process
 */
export async function readQueueHolder(pool: Pool): Promise<number | null> {
  const named: number[] = [];
  const onNotice = ({ detail = '' }: { detail?: string | undefined }) => {
    // The text depends on `lc_messages`; the only number in it does not.
    const [pid] = /\d+/.exec(detail) ?? [];
    if (pid) named.push(Number(pid));
  };
  const session = await pool.connect();
  session.on('notice', onNotice);
  try {
    await session.query(ASK).catch((error) => {
      // The queue may be full, which is reported after the warning.
      if (named.length === 0) throw error;
    });
    return named[0] ?? null;
  } finally {
    session.off('notice', onNotice);
    session.release();
  }
}
