import { identifier, type Session } from '../postgres/connect.ts';
import { inBranch, type RowsHost } from '../rows/branch-session.ts';

/** A table as it is at one time. */
export interface WatchedTable {
  oid: string;
  schema: string;
  name: string;
  /** `pg_class.relkind` */
  kind: string;
  /** Its file, which changes when it is rewritten. Null: a partitioned table has none. */
  file: string | null;
  bytes: number;
  /** The partitioned table that its rows are counted with; itself for any other table. */
  root: string;
  is_countable: boolean;
  /** By the last ANALYZE; null: unknown. */
  estimate: number | null;
  /** By the statistics, since the database was made. */
  inserted: number;
  deleted: number;
  /** Exact; null: not counted. */
  rows: number | null;
}

export interface WatchedTables {
  tables: WatchedTable[];
  unwatched: number;
}

/** The largest ones. */
const TABLES_MAX = 2_000;
/**
 * A count locks a table, its partitions and their indexes. The agent blocks a branch whose session has many
 * more locks.
 */
const LOCKS_MAX = 2_000;
/** For counting the rows of all tables; what takes longer is estimated. */
const COUNT_WITHIN_MS = 2_500;

/** Row security would hide rows, and run the policies of the tenant. */
const TABLES = `
  SELECT c.oid::text, nspname AS schema, relname AS name, relkind AS kind, pg_relation_filenode(c.oid)::text AS file,
         coalesce(pg_table_size(c.oid), 0)::text AS bytes, coalesce(pg_partition_root(c.oid)::oid, c.oid)::text AS root,
         has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
           AND NOT row_security_active(c.oid) AS is_countable,
         CASE WHEN reltuples >= 0 THEN reltuples::bigint END::text AS estimate,
         (SELECT 1 + count(*) FROM pg_index WHERE indrelid = c.oid)::text AS locks,
         pg_stat_get_tuples_inserted(c.oid)::text AS inserted, pg_stat_get_tuples_deleted(c.oid)::text AS deleted,
         (count(*) OVER ())::text AS total
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
  WHERE relkind IN ('r', 'p', 'm') AND relpersistence <> 't' AND c.oid >= 16384
    AND nspname NOT IN ('pg_catalog', 'pg_toast', 'information_schema')
  ORDER BY coalesce(pg_table_size(c.oid), 0) DESC, c.oid LIMIT ${TABLES_MAX}`;

type TextRow = Record<
  'oid' | 'schema' | 'name' | 'kind' | 'root' | 'bytes' | 'locks' | 'inserted' | 'deleted' | 'total',
  string
> &
  Record<'file' | 'estimate', string | null> & { is_countable: string };

/** Reads the tables of a branch as its read-only login, and counts their rows as far as the time allows. */
export const watchTables = (
  host: RowsHost,
  branch: { branch_id: string; database: string },
): Promise<WatchedTables> => inBranch(host, branch, 'query', watchIn);

export async function watchIn(session: Session): Promise<WatchedTables> {
  const watched = await readTables(session);
  await countRows(session, watched.tables);
  return watched;
}

/** The tables without numbers of rows: neither counted nor estimated. */
export async function watchUncounted(session: Session): Promise<WatchedTables> {
  const { tables, unwatched } = await readTables(session);
  return { tables: tables.map((table) => ({ ...table, estimate: null })), unwatched };
}

async function readTables(session: Session): Promise<WatchedTables> {
  const { rows } = await session.query<TextRow>(TABLES);
  const unwatched = Number(rows[0]?.total ?? 0) - rows.length;
  const locks = new Map<string, number>();
  for (const row of rows) locks.set(row.root, (locks.get(row.root) ?? 0) + Number(row.locks));
  const tables = rows.map(
    ({ locks: _, total: __, ...row }): WatchedTable => ({
      ...row,
      bytes: Number(row.bytes),
      is_countable:
        row.is_countable === 't' &&
        (locks.get(row.oid) ?? 0) <= LOCKS_MAX &&
        // Partitions may be among the tables that are not watched.
        (row.kind !== 'p' || unwatched === 0),
      estimate: row.estimate === null ? null : Number(row.estimate),
      inserted: Number(row.inserted),
      deleted: Number(row.deleted),
      rows: null,
    }),
  );
  return { tables, unwatched };
}

/**
 * The smallest first: with the time over, the largest remain. A table is not locked any more when it is
 * counted.
 */
async function countRows(session: Session, tables: readonly WatchedTable[]): Promise<void> {
  const bytes = new Map<string, number>();
  for (const table of tables) bytes.set(table.root, (bytes.get(table.root) ?? 0) + table.bytes);
  const sizeOf = ({ oid }: WatchedTable) => bytes.get(oid) ?? 0;
  const whole = tables.filter(({ oid, root, is_countable }) => oid === root && is_countable);
  const end = performance.now() + COUNT_WITHIN_MS;
  await session.query('SAVEPOINT counting');
  for (const table of whole.toSorted((a, b) => sizeOf(a) - sizeOf(b))) {
    const left = Math.floor(end - performance.now());
    if (left <= 0) return;
    try {
      await session.query(`SET LOCAL statement_timeout = ${left}`);
      table.rows = await countOf(session, table);
    } catch {
      return;
    } finally {
      await session.query('ROLLBACK TO counting');
    }
  }
}

async function countOf(session: Session, { schema, name, kind }: WatchedTable): Promise<number> {
  // A partitioned table is counted with its partitions, any other one without the tables that inherit from
  // it.
  const only = kind === 'p' ? '' : 'ONLY ';
  const { rows } = await session.query<{ count: string }>(
    `SELECT count(*) FROM ${only}${identifier(schema)}.${identifier(name)}`,
  );
  return Number(rows[0]?.count);
}
