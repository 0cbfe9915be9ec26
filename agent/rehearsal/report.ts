import type { SchemaDifference } from '../../shared/protocol/difference-operations.ts';
import type {
  Rehearsal,
  RehearsalReport,
  RehearsedTable,
} from '../../shared/protocol/rehearsal-operations.ts';
import { inTransaction, type Pool } from '../postgres/connect.ts';
import { type LockSummary, locksByRelation } from './lock-record.ts';
import type { WatchedTable, WatchedTables } from './watched-tables.ts';

/** What is known of a branch before and after a migration. */
export interface Observations {
  limits: Rehearsal['limits'];
  before: WatchedTables;
  after: WatchedTables;
  locks: LockSummary;
  wal: RehearsalReport['wal'];
  schema: SchemaDifference;
}

/** A report names no more of them. */
const TABLES_MAX = 500;
const STRONGEST = 'AccessExclusiveLock';

type Danger = RehearsalReport['dangers'][number];

export const reportOf = ({ wal, schema, ...observed }: Observations): RehearsalReport => {
  const { dangers, samples, longest_gap_ms, ...report } = tableReports(observed);
  return {
    verdict: dangers.length > 0 ? 'danger' : 'safe',
    dangers,
    ...report,
    samples,
    longest_gap_ms,
    wal,
    schema,
  };
};

/** What became of the tables that were there before. */
export function tableReports({ limits, before, after, locks }: Omit<Observations, 'wal' | 'schema'>) {
  const present = new Map(after.tables.map((table) => [table.oid, table]));
  // With too many tables, one that is missing may only be too small now.
  const isComplete = after.unwatched === 0;
  const held = locksByRelation(locks);
  const tables = before.tables
    .filter(({ oid }) => isComplete || present.has(oid))
    .map((table) => rehearsedTable(table, present.get(table.oid), held.get(table.oid)));
  const dangers = tables.flatMap((table) => dangersOf(table, limits));
  return {
    dangers: dangers.slice(0, TABLES_MAX),
    tables: tables.filter(isNotable).slice(0, TABLES_MAX),
    unwatched_tables: before.unwatched,
    samples: locks.samples,
    longest_gap_ms: locks.longest_gap_ms,
  };
}

function rehearsedTable(
  before: WatchedTable,
  after: WatchedTable | undefined,
  locks: RehearsedTable['locks'] = [],
): RehearsedTable {
  const { schema, name, bytes, kind } = before;
  return {
    schema,
    name,
    bytes,
    locks: locks.map(({ mode, longest_ms }) => ({ mode, longest_ms })),
    // A materialized view gets a new file whenever it is refreshed.
    rewritten: after !== undefined && kind === 'r' && after.file !== before.file,
    dropped: after === undefined,
    rows_before: rowsBefore(before),
    rows_after: rowsAfter(before, after),
  };
}

const exactly = (count: number) => ({ count, exact: true });
const about = (count: number) => ({ count: Math.max(0, count), exact: false });

/** Rows of a partition move to others; they are counted with the whole. */
function rowsBefore({ rows, estimate, oid, root }: WatchedTable): RehearsedTable['rows_before'] {
  if (oid !== root) return null;
  if (rows !== null) return exactly(rows);
  return estimate === null ? null : about(estimate);
}

function rowsAfter(before: WatchedTable, after: WatchedTable | undefined): RehearsedTable['rows_after'] {
  if (before.oid !== before.root) return null;
  if (!after) return exactly(0);
  if (after.rows !== null) return exactly(after.rows);
  const known = before.rows ?? before.estimate;
  // The statistics of rows do not know what was in a file that was replaced.
  if (after.file !== before.file) return after.bytes === 0 ? exactly(0) : null;
  if (known === null || before.kind !== 'r') return null;
  return about(known + (after.inserted - before.inserted) - (after.deleted - before.deleted));
}

const isNotable = ({ locks, rewritten, dropped, rows_before, rows_after }: RehearsedTable) =>
  locks.length > 0 || rewritten || dropped || rows_before?.count !== rows_after?.count;

const DANGERS: Record<Danger['kind'], (table: RehearsedTable, limits: Rehearsal['limits']) => boolean> = {
  lock: ({ bytes, locks }, { lock_ms, table_bytes }) =>
    bytes >= table_bytes && locks.some(({ mode, longest_ms }) => mode === STRONGEST && longest_ms >= lock_ms),
  // Nothing is copied with an empty table.
  rewrite: ({ rewritten, bytes }) => rewritten && bytes > 0,
  rows_lost: ({ rows_before, rows_after }) =>
    rows_before !== null && rows_after !== null && rows_after.count < rows_before.count,
};

const dangersOf = (table: RehearsedTable, limits: Rehearsal['limits']): Danger[] =>
  (Object.keys(DANGERS) as Danger['kind'][])
    .filter((kind) => DANGERS[kind](table, limits))
    .map((kind) => ({ kind, schema: table.schema, name: table.name }));

/** Reading takes about a second for this much, so more is not attributed. */
const ATTRIBUTED_BYTES_MAX = 64 * 1024 * 1024;
const WITHIN_MS = 4_000;

/** A record that changes several blocks is listed once for each. */
const OF_DATABASE = `
  SELECT coalesce(sum(record_length), 0)::text AS bytes FROM (
    SELECT DISTINCT start_lsn, record_length
    FROM pg_get_wal_block_info($1, $2, false) WHERE reldatabase = (SELECT oid FROM pg_database WHERE datname = $3)
  ) AS record`;

/**
 * The bytes of write-ahead log that have changed the database since `from`. What all databases of the host
 * have written, if that is more than can be read, or if the module `pg_walinspect` is missing.
 */
export async function readWrittenWal(
  { postgres, sessions }: Record<'postgres' | 'sessions', Pool>,
  from: string,
  database: string,
): Promise<RehearsalReport['wal']> {
  const { rows } = await postgres.query<{ now: string; bytes: string }>(
    'SELECT lsn AS now, (lsn - $1::pg_lsn)::text AS bytes FROM pg_current_wal_flush_lsn() AS lsn',
    [from],
  );
  const { now = from, bytes = '0' } = rows[0] ?? {};
  const ofHost = { bytes: Math.max(0, Number(bytes)), exact: false };
  if (ofHost.bytes > ATTRIBUTED_BYTES_MAX) return ofHost;
  if (ofHost.bytes === 0) return { bytes: 0, exact: true };
  const session = await sessions.connect();
  try {
    return await inTransaction(session, async () => {
      await session.query(`SET LOCAL statement_timeout = ${WITHIN_MS}`);
      await session.query('CREATE EXTENSION IF NOT EXISTS pg_walinspect');
      const found = await session.query<{ bytes: string }>(OF_DATABASE, [from, now, database]);
      return { bytes: Number(found.rows[0]?.bytes), exact: true };
    });
  } catch {
    return ofHost;
  } finally {
    session.release();
  }
}
