import { z } from 'zod';

const Count = z.number().nonnegative();

/** What PostgreSQL counts of a database (`pg_stat_database`), and what would tell that it began anew. */
export const Statistics = z.object({
  /** The database's oid: a database that is made anew under the same name has another. */
  database: z.string(),
  /** When somebody reset this database's statistics; null: never. */
  database_reset: z.string().nullable(),
  /** When the server's processes were started, and when statistics that all databases share were reset. */
  server_started: z.string(),
  shared_reset: z.string(),
  committed: Count,
  rolled_back: Count,
  fetched: Count,
  inserted: Count,
  updated: Count,
  deleted: Count,
  blocks_hit: Count,
  blocks_read: Count,
  /** Sessions that were let in: direct ones, the pooler's and the agent's own. */
  sessions: Count,
  /** Milliseconds those sessions were there, and were running statements. */
  session_ms: Count,
  active_ms: Count,
  parallel_workers: Count,
});
export type Statistics = z.output<typeof Statistics>;

const COUNTERS = [
  'committed',
  'rolled_back',
  'fetched',
  'inserted',
  'updated',
  'deleted',
  'blocks_hit',
  'blocks_read',
  'sessions',
  'session_ms',
  'active_ms',
  'parallel_workers',
] as const satisfies (keyof Statistics)[];
export type Change = Record<(typeof COUNTERS)[number], number>;

/** What a branch has used since it was made. */
export const Totals = z.object({
  cpu_seconds: Count,
  connections: Count,
  committed: Count,
  rolled_back: Count,
  fetched: Count,
  inserted: Count,
  updated: Count,
  deleted: Count,
});
export type Totals = z.output<typeof Totals>;

export const ZERO_TOTALS: Totals = {
  cpu_seconds: 0,
  connections: 0,
  committed: 0,
  rolled_back: 0,
  fetched: 0,
  inserted: 0,
  updated: 0,
  deleted: 0,
};

const NO_CHANGE = Object.fromEntries(COUNTERS.map((name) => [name, 0])) as Change;

/**
 * What was counted since `seen`; since the counting began, if it began anew. After a crash all statistics are
 * gone: the server's processes are new and the shared statistics bear a new date. A clean restart changes only
 * the first, an operator's reset of the shared ones only the second, and neither touches a database's own.
 */
export function changeSince(seen: Statistics | null, now: Statistics): Change {
  const goesOn = seen !== null && !beganAnew(seen, now);
  return Object.fromEntries(COUNTERS.map((name) => [name, now[name] - (goesOn ? seen[name] : 0)])) as Change;
}

const beganAnew = (seen: Statistics, now: Statistics): boolean =>
  seen.database !== now.database ||
  seen.database_reset !== now.database_reset ||
  (seen.server_started !== now.server_started && seen.shared_reset !== now.shared_reset) ||
  COUNTERS.some((name) => now[name] < seen[name]);

/**
 * Whether clients did any of it. Their sessions bring their time along whenever they report what they did, so
 * without any, all of it is autovacuum's: it comes by every minute, even when there is nothing to do.
 */
const isByClients = ({ session_ms }: Change): boolean => session_ms > 0;

/** What PostgreSQL's statistics don't tell. */
type Told = Pick<Totals, 'cpu_seconds' | 'connections'>;

/** Every login is a transaction of its own, which no client asked for: those are left out. */
export function addChange(totals: Totals, change: Change, told: Told): Totals {
  const counted = isByClients(change) ? change : NO_CHANGE;
  return {
    cpu_seconds: totals.cpu_seconds + told.cpu_seconds,
    connections: totals.connections + told.connections,
    committed: totals.committed + Math.max(0, counted.committed - counted.sessions),
    rolled_back: totals.rolled_back + counted.rolled_back,
    fetched: totals.fetched + counted.fetched,
    inserted: totals.inserted + counted.inserted,
    updated: totals.updated + counted.updated,
    deleted: totals.deleted + counted.deleted,
  };
}

/** The totals under the names of spec 2.7. */
export const metricsOf = (totals: Totals) => ({
  cpu_seconds: totals.cpu_seconds,
  total_connections: totals.connections,
  transactions_committed: totals.committed,
  transactions_rolled_back: totals.rolled_back,
  rows_fetched: totals.fetched,
  rows_inserted: totals.inserted,
  rows_updated: totals.updated,
  rows_deleted: totals.deleted,
});

/** Blocks found in memory out of those read, 0 to 1; null when clients read none. */
export function cacheHitRatio(change: Change): number | null {
  const blocks = change.blocks_hit + change.blocks_read;
  return isByClients(change) && blocks > 0 ? change.blocks_hit / blocks : null;
}
