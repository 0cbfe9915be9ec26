import type { Pool, Session } from './connect.ts';
import { lockedBy } from './source-sessions.ts';

/**
 * Runs a statement that needs a database without sessions, and that locks it against new ones. Those that began just
 * before are emptied out concurrently, because PostgreSQL only waits for them, for five seconds.
 * @param empty called when the database is locked; ends its sessions. If it returns false, the statement is cancelled
 * @throws what the statement throws
 */
export async function runAlone(
  { postgres, session }: { postgres: Pool; session: Session },
  database: string,
  statement: () => Promise<unknown>,
  empty: (signal: AbortSignal) => Promise<boolean>,
): Promise<void> {
  const pid = await ownPid(session);
  const done = new AbortController();
  const running = statement().finally(() => done.abort());
  const guard = async () => {
    const { signal } = done;
    await lockedBy(postgres, pid, database, signal);
    if (signal.aborted || (await empty(signal))) return;
    // Not once the last session has ended: the statement has begun then.
    await postgres.query(
      'SELECT pg_cancel_backend($1) WHERE EXISTS (SELECT FROM pg_stat_activity WHERE datname = $2)',
      [pid, database],
    );
  };
  const [ran, guarded] = await Promise.allSettled([running, guard()]);
  if (ran.status === 'rejected') throw ran.reason;
  if (guarded.status === 'rejected') throw guarded.reason;
}

async function ownPid(session: Session): Promise<number> {
  const { rows } = await session.query<{ pid: number }>('SELECT pg_backend_pid() AS pid');
  return rows[0]?.pid ?? 0;
}
