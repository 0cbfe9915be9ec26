import { z } from 'zod';

const Count = z.number().nonnegative();

/** PostgreSQL's counters of a database (`pg_stat_database`), and the fields that reveal their reset. */
export const Statistics = z.object({
  /** The database's oid. A database created again under the same name has another. */
  database: z.string(),
  /** When this database's statistics were last reset; null: never. */
  database_reset: z.string().nullable(),
  /** When the server's processes were started, and when the statistics shared by all databases were reset. */
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
  /** Established sessions: direct ones, the pooler's and the agent's own. */
  sessions: Count,
  /** Milliseconds those sessions existed, and ran statements. */
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

/** A branch's usage since its creation. */
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
 * The counts since `seen`, or since the last reset of the statistics. A crash resets all statistics: the
 * server's processes are new and the shared statistics have a new reset date. A clean restart changes only
 * the first, an operator's reset of the shared statistics only the second, and neither affects a database's
 * own statistics.
 */
export function changeSince(seen: Statistics | null, now: Statistics): Change {
  const continues = seen !== null && !wasReset(seen, now);
  return Object.fromEntries(
    COUNTERS.map((name) => [name, now[name] - (continues ? seen[name] : 0)]),
  ) as Change;
}

const wasReset = (seen: Statistics, now: Statistics): boolean =>
  seen.database !== now.database ||
  seen.database_reset !== now.database_reset ||
  (seen.server_started !== now.server_started && seen.shared_reset !== now.shared_reset) ||
  COUNTERS.some((name) => now[name] < seen[name]);

/**
 * Whether clients contributed to the change. Their sessions report their duration together with their work,
 * so a change without session time is autovacuum's alone, which visits every minute even when there is
 * nothing to do.
 */
const isByClients = ({ session_ms }: Change): boolean => session_ms > 0;

/** Usage that PostgreSQL's statistics do not contain. */
type OtherUsage = Pick<Totals, 'cpu_seconds' | 'connections'>;

/** Each login is a transaction that no client requested, so logins are subtracted from the transactions. */
export function addChange(totals: Totals, change: Change, other: OtherUsage): Totals {
  const counted = isByClients(change) ? change : NO_CHANGE;
  return {
    cpu_seconds: totals.cpu_seconds + other.cpu_seconds,
    connections: totals.connections + other.connections,
    committed: totals.committed + Math.max(0, counted.committed - counted.sessions),
    rolled_back: totals.rolled_back + counted.rolled_back,
    fetched: totals.fetched + counted.fetched,
    inserted: totals.inserted + counted.inserted,
    updated: totals.updated + counted.updated,
    deleted: totals.deleted + counted.deleted,
  };
}

/** The totals under the names of specification 2.7. */
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

/** Share of blocks found in memory, from 0 to 1; null when clients read none. */
export function cacheHitRatio(change: Change): number | null {
  const blocks = change.blocks_hit + change.blocks_read;
  return isByClients(change) && blocks > 0 ? change.blocks_hit / blocks : null;
}
