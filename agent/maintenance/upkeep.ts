import { setTimeout as sleep } from 'node:timers/promises';
import { forgetAccessChanges } from '../access/store-access.ts';
import type { RuleSync } from '../access/sync-rules.ts';
import type { CloneTurns } from '../cloning/clone-turns.ts';
import { forgetOrigins } from '../cloning/create-clone.ts';
import type { Pool, Queryable } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import { dropUnusedRoles } from '../postgres/unused-roles.ts';
import type { Log } from '../process/log.ts';
import { runLoop } from '../process/loops.ts';

/**
 * Work that reads the whole host. Operations leave it to this loop, so that their cost does not grow with the number of
 * branches.
 */

/** What it takes to keep the host tidy. */
interface UpkeepHost {
  postgres: Pool;
  /** For operations: each holds its locks in one of these sessions. */
  sessions: Pool;
  rules: RuleSync;
  cloneTurns: CloneTurns;
  log: Log;
}

/** Less than `CURRENT_FOR_MS` of the known access, so that no operation has to read all of it. */
const EVERY_MS = 5 * 60_000;
const ANALYZE_EVERY_MS = 5_000;
/** A part of the work begins when no clone has run for this time, and after so long in every case. */
const IDLE_FOR_MS = 250;
const IDLE_WITHIN_MS = 20_000;
const POLL_EVERY_MS = 50;

export async function runUpkeepLoop(host: UpkeepHost, signal: AbortSignal): Promise<void> {
  const { log } = host;
  await Promise.all([
    runLoop(() => tidy(host, signal), { every: EVERY_MS, signal, log, failed: 'upkeep.failed' }),
    runLoop(() => analyzeGrown(host.postgres), {
      every: ANALYZE_EVERY_MS,
      signal,
      log,
      failed: 'upkeep.not_analyzed',
    }),
  ]);
}

async function tidy(
  { postgres, sessions, rules, cloneTurns }: UpkeepHost,
  signal: AbortSignal,
): Promise<void> {
  const untilIdle = async () => {
    const started = performance.now();
    while (!signal.aborted && cloneTurns.idleMs < IDLE_FOR_MS && performance.now() - started < IDLE_WITHIN_MS)
      await sleep(POLL_EVERY_MS, undefined, { signal }).catch(() => {});
  };
  await withLocks(sessions, [], (session) => dropUnusedRoles(session, untilIdle));
  await untilIdle();
  await forgetOrigins(postgres);
  await forgetAccessChanges(postgres);
  await untilIdle();
  await rules.syncAll();
}

/** Fewer rows fit into a page or two, and PostgreSQL knows the number of pages. */
const ROWS_MIN = 50;

/**
 * Analyzes the agent's own tables, and the catalogs that all databases share, if they have twice or half the rows of
 * their last analysis. Autovacuum goes through all databases in turn, so on a host with many it comes late. Statistics
 * of shared catalogs belong to the database that has analyzed them.
 * @returns the names
 */
export async function analyzeGrown(db: Queryable): Promise<string[]> {
  const { rows } = await db.query<{ name: string }>(
    `SELECT pg_class.oid::regclass::text AS name
     FROM pg_class CROSS JOIN LATERAL (
       SELECT greatest(pg_stat_get_live_tuples(pg_class.oid), ${ROWS_MIN}) AS now, greatest(reltuples, ${ROWS_MIN}) AS analyzed
     ) AS count
     WHERE relkind = 'r' AND (relisshared OR relnamespace = 'public'::regnamespace)
       AND (reltuples < 0 OR now >= 2 * analyzed OR 2 * now <= analyzed)`,
  );
  for (const { name } of rows) await db.query(`ANALYZE ${name}`);
  return rows.map(({ name }) => name);
}
