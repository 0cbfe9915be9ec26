import type { Queryable } from '../postgres/connect.ts';
import { COMPARING, KEPT } from '../postgres/sessions.ts';
import { pollUntil } from '../process/loops.ts';

/** Which sessions a clone ends in its source, and for which it waits. */

const POLL_EVERY_MS = 5;
/**
 * A direct session is ended after it was idle for this time, and without that once the patience is over.
 * Milliseconds.
 */
const IDLE_FOR = 100;
const PATIENCE = 300;
/** More direct sessions get no patience: one of them always works, and the others wait for the end of the clone. */
const CROWD = 8;

/**
 * Resolves when the database has no session left. Ends autovacuum workers, comparisons, kept sessions and
 * idle direct ones. The pooler's are left to the pooler: one that looks idle may just have been sent the
 * first statement of a transaction.
 * @param wait milliseconds to wait for sessions that cannot be ended
 * @param since when that wait began, in milliseconds of `performance.now()`
 * @param crowds whether it also resolves for a crowd of direct sessions, and for one that has begun meanwhile: those
 *   that were ended come back, so they never leave a database that accepts logins
 * @returns whether it resolved in time, or `signal` was aborted
 */
export async function emptyDatabase(
  db: Queryable,
  database: string,
  {
    wait,
    signal,
    since = performance.now(),
    crowds = false,
  }: { wait: number; signal?: AbortSignal | undefined; since?: number | undefined; crowds?: boolean },
): Promise<boolean> {
  let isCrowd = false;
  const isOver = async () => {
    const elapsed = performance.now() - since;
    const isPatient = elapsed < PATIENCE && !isCrowd;
    const { rows } = await db.query<{ direct: boolean; is_new: boolean }>(
      `SELECT client_addr IS NOT NULL AS direct,
              backend_start > clock_timestamp() - $3 * interval '1 millisecond' AS is_new,
              CASE WHEN backend_type = 'autovacuum worker'
                     OR application_name = '${COMPARING}' OR (${KEPT})
                     OR (state = 'idle' AND client_addr IS NOT NULL
                         AND clock_timestamp() - state_change >= $2 * interval '1 millisecond')
              THEN pg_terminate_backend(pid) END
       FROM pg_stat_activity WHERE datname = $1`,
      [database, isPatient ? IDLE_FOR : 0, elapsed],
    );
    const direct = rows.filter((row) => row.direct);
    isCrowd ||= direct.length > CROWD;
    return rows.length === 0 || (crowds && (isCrowd || direct.some(({ is_new }) => is_new)));
  };
  const within = Math.max(0, wait - (performance.now() - since));
  const isReached = await pollUntil(isOver, { within, every: POLL_EVERY_MS, signal });
  return isReached === true || signal?.aborted === true;
}
