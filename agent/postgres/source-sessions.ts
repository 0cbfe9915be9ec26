import { setTimeout as sleep } from 'node:timers/promises';
import type { Queryable } from './connect.ts';

const LOOK_EVERY_MS = 5;

/** `application_name` of sessions whose work can be left: a clone ends them at once. */
export const GIVES_WAY = 'branchgate-background';

/** Direct sessions are ended when idle for so long, and after that time without more ado. Milliseconds. */
const IDLE_FOR = 100;
const PATIENCE = 300;

/**
 * Resolves once no session is left in the database. Ends autovacuum workers, idle direct sessions and
 * those that give way on the way. The pooler's are its own business: one that looks idle may just have been sent a transaction's first
 * statement.
 * @param wait milliseconds to wait for sessions that can't be ended
 * @returns whether the database became empty in time
 */
export async function emptyDatabase(
  db: Queryable,
  database: string,
  { wait, signal }: { wait: number; signal?: AbortSignal },
): Promise<boolean> {
  const started = performance.now();
  for (;;) {
    const elapsed = performance.now() - started;
    const { rows } = await db.query(
      `SELECT CASE WHEN backend_type = 'autovacuum worker' OR application_name = '${GIVES_WAY}'
                     OR (state = 'idle' AND client_addr IS NOT NULL
                         AND clock_timestamp() - state_change >= $2 * interval '1 millisecond')
              THEN pg_terminate_backend(pid) END
       FROM pg_stat_activity WHERE datname = $1`,
      [database, elapsed < PATIENCE ? IDLE_FOR : 0],
    );
    if (rows.length === 0 || signal?.aborted) return true;
    if (elapsed > wait) return false;
    await sleep(LOOK_EVERY_MS);
  }
}

/** Resolves once the session has the database's lock, so that nobody else can log in any more. */
export async function lockedBy(
  db: Queryable,
  pid: number,
  database: string,
  signal: AbortSignal,
): Promise<void> {
  for (;;) {
    const { rows } = await db.query(
      `SELECT FROM pg_locks JOIN pg_database ON pg_database.oid = objid
       WHERE pid = $1 AND locktype = 'object' AND classid = 'pg_database'::regclass AND granted AND datname = $2`,
      [pid, database],
    );
    if (rows.length > 0 || signal.aborted) return;
    await sleep(LOOK_EVERY_MS);
  }
}
