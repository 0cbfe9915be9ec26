import { type ComparisonLogin, readAsLogin } from '../difference/schema/comparison-login.ts';
import type { ProofHost } from '../difference/schema/prove-statements.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { HostError } from '../process/host-error.ts';

/**
 * The table in which a migration tool keeps what it has run. The tool has written it in the branch, so its new rows there are
 * what `main` is to have too: without them the tool would run the migration again.
 */

const READ_WITHIN_MS = 7_000;
/** Tables with more rows are left alone. */
const ROWS_MAX = 10_000;
/** Bytes of a table. A tenant can write values of any size into one with the name of a tool. */
const BYTES_MAX = 4 * 2 ** 20;

/** Names of the tables, with the columns that tell a general name from a table of the application. */
const TOOLS: readonly { table: string; columns?: readonly string[] }[] = [
  { table: '_prisma_migrations' },
  { table: '__drizzle_migrations' },
  { table: '_sqlx_migrations' },
  { table: '__EFMigrationsHistory' },
  { table: 'SequelizeMeta' },
  { table: 'alembic_version' },
  { table: 'databasechangelog' },
  { table: 'django_migrations' },
  { table: 'flyway_schema_history' },
  { table: 'goose_db_version' },
  { table: 'knex_migrations' },
  { table: 'kysely_migration' },
  { table: 'mikro_orm_migrations' },
  { table: 'pgmigrations' },
  { table: 'refinery_schema_history' },
  { table: 'schema_migrations', columns: ['version'] },
  { table: 'migrations', columns: ['timestamp', 'name'] },
  { table: 'migrations', columns: ['migration', 'batch'] },
];

/** The tool keeps one row, the present version, and replaces it. */
const isReplaced = ({ name, columns }: ToolTable): boolean =>
  name === 'alembic_version' || (name === 'schema_migrations' && columns.includes('dirty'));

interface ToolTable {
  schema: string;
  name: string;
  /** Without those that PostgreSQL numbers: `main` has numbers of its own. */
  columns: string[];
  /** Values as SQL. */
  rows: string[][];
}

const FOUND = `
  SELECT nspname AS schema, relname AS name, json_agg(attname::text ORDER BY attnum)::text AS columns
  FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace JOIN pg_attribute ON attrelid = pg_class.oid
  LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
  WHERE relkind = 'r' AND pg_class.oid >= 16384 AND relname = ANY ($1) AND attnum > 0 AND NOT attisdropped
    AND attidentity = '' AND attgenerated = '' AND coalesce(pg_get_expr(adbin, adrelid), '') NOT LIKE 'nextval(%'
  GROUP BY 1, 2 ORDER BY 1, 2`;

async function readTables(session: Session): Promise<ToolTable[]> {
  const { rows: found } = await session.query<Record<'schema' | 'name' | 'columns', string>>(FOUND, [
    TOOLS.map(({ table }) => table),
  ]);
  const tables: ToolTable[] = [];
  for (const { schema, name, columns: listed } of found) {
    const columns = JSON.parse(listed) as string[];
    const isOfTool = TOOLS.some(
      (tool) => tool.table === name && (tool.columns ?? []).every((column) => columns.includes(column)),
    );
    if (!isOfTool) continue;
    const values = columns.map((column) => `quote_nullable(${identifier(column)}::text)`);
    const { rows: read } = await session.query<{ count: string; rows: string | null }>(
      `SELECT count(*) AS count,
         CASE WHEN coalesce(sum(octet_length(row)), 0) <= ${BYTES_MAX} THEN coalesce(json_agg(row::json), '[]')::text END AS rows
       FROM (SELECT json_build_array(${values.join(', ')})::text AS row
             FROM ${identifier(schema)}.${identifier(name)} ORDER BY ctid LIMIT ${ROWS_MAX + 1}) AS listed`,
    );
    const { count = '0', rows = null } = read[0] ?? {};
    if (Number(count) > ROWS_MAX) continue;
    if (rows === null)
      throw new HostError('INVALID_CALL', `the rows of ${schema}.${name} are too large for a plan`, {
        path: 'from',
      });
    tables.push({ schema, name, columns, rows: JSON.parse(rows) as string[][] });
  }
  return tables;
}

/**
 * @param login may connect to both databases
 * @returns statements that give the tables of migration tools in `main` the new rows of the branch
 * @throws HostError INVALID_CALL for rows that are too large
 */
export async function toolStatements(
  host: ProofHost,
  login: ComparisonLogin,
  main: string,
  branch: string,
): Promise<string[]> {
  const there = await readAsLogin(host, login, branch, READ_WITHIN_MS, readTables);
  const here = there.length === 0 ? [] : await readAsLogin(host, login, main, READ_WITHIN_MS, readTables);
  return there.flatMap((table) =>
    statementsFor(
      table,
      here.find(({ schema, name }) => schema === table.schema && name === table.name),
    ),
  );
}

function statementsFor(table: ToolTable, ofMain: ToolTable | undefined): string[] {
  const { schema, name, columns } = table;
  if (ofMain && ofMain.columns.join() !== columns.join()) return [];
  const listed = (rows: readonly string[][]) => rows.map((row) => `(${row.join(', ')})`);
  const missing = (rows: readonly string[][], others: readonly string[][]) => {
    const known = new Set(listed(others));
    return listed(rows).filter((row) => !known.has(row));
  };
  const full = `${identifier(schema)}.${identifier(name)}`;
  const names = columns.map(identifier).join(', ');
  const added = missing(table.rows, ofMain?.rows ?? []);
  if (added.length === 0) return [];
  const replaced = isReplaced(table) ? missing(ofMain?.rows ?? [], table.rows) : [];
  return [
    ...replaced.map((row) => `DELETE FROM ${full} WHERE (${names}) = ${row}`),
    `INSERT INTO ${full} (${names}) VALUES ${added.join(', ')} ON CONFLICT DO NOTHING`,
  ];
}
