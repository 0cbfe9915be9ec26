import type { Session } from '../postgres/connect.ts';
import { HostError } from '../process/host-error.ts';

/**
 * A table with rows of its own, as the read-only login sees it: ordinary tables and the leaves of partitioned
 * ones.
 */
export interface FoundTable {
  oid: string;
  schema: string;
  name: string;
  /** The file at the time of the snapshot. */
  relfilenode: string;
  /** By PostgreSQL's statistics; rows -1: unknown. */
  rows: number;
  pages: number;
  /** Its changes are in the WAL. */
  logged: boolean;
  /** In the folder of the database. */
  default_tablespace: boolean;
  readable: boolean;
  /** Policies hide rows from the login. */
  row_security: boolean;
  columns: TableColumn[];
}

interface TableColumn {
  name: string;
  number: number;
  type: string;
  /** The text of a value depends on nothing but the value and its type. */
  stable: boolean;
  /** An enum, or an array of one. */
  labelled: boolean;
  /**
   * Digest of the value in rows that are older than the column, which is in no block; null: there is none.
   */
  missing: string | null;
}

/** What one side has. */
export interface Catalog {
  tables: FoundTable[];
  /**
   * Changes when a label of an enum is renamed, which changes the text of rows in blocks that were not
   * written.
   */
  labels: string;
}

/** Types whose text depends on the catalogs. */
const BY_CATALOG = `'{regclass,regcollation,regconfig,regdictionary,regnamespace,regoper,regoperator,regproc,
  regprocedure,regrole,regtype,aclitem}'::regtype[]`;

/**
 * The element type of an array, or the type beneath a domain. Other types that are made of types count as
 * unstable: ALTER TYPE can change their text without writing a row.
 */
const COLUMN_TYPES = `
  SELECT typed.oid, element.typtype = 'e' AS labelled,
    CASE element.typtype WHEN 'e' THEN true WHEN 'b' THEN element.oid <> ALL (${BY_CATALOG}) AND element.typelem = 0
      WHEN 'r' THEN element.oid < 16384 WHEN 'm' THEN element.oid < 16384 ELSE false END
      OR element.oid IN ('point'::regtype, 'lseg'::regtype, 'box'::regtype, 'line'::regtype, 'name'::regtype,
        'oidvector'::regtype, 'int2vector'::regtype) AS stable
  FROM (SELECT DISTINCT atttypid AS oid FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped) AS used
  JOIN pg_type AS typed USING (oid)
  JOIN pg_type AS element ON element.oid = CASE
    WHEN typed.typcategory = 'A' AND typed.typelem <> 0 THEN typed.typelem
    WHEN typed.typtype = 'd' THEN typed.typbasetype ELSE typed.oid END`;

/** Tables, indexes, columns and labels of one side: the catalog is read into the agent's memory. */
const OBJECTS_MAX = 200_000;
const COUNTED = ['pg_class', 'pg_attribute', 'pg_enum'];
/** SQLSTATE `program_limit_exceeded`. */
const PROGRAM_LIMIT = '54000';

async function requireFew(session: Session, most: number): Promise<void> {
  // Stops counting at the limit, so that a huge catalog costs no more.
  const counts = COUNTED.map(
    (catalog) => `(SELECT count(*) FROM (SELECT FROM ${catalog} OFFSET 0 LIMIT ${most + 1}) AS counted)`,
  );
  const { rows } = await session.query<{ objects: string }>(`SELECT ${counts.join(' + ')} AS objects`);
  if (Number(rows[0]?.objects) > most)
    throw new HostError('STATEMENT_REFUSED', 'the database has too many tables to compare', {
      sqlstate: PROGRAM_LIMIT,
    });
}

/**
 * Reads the catalog of one side. Virtual columns are computed from others, and are not compared.
 * @throws HostError STATEMENT_REFUSED for a catalog that is too large
 */
export async function readCatalog(session: Session, most = OBJECTS_MAX): Promise<Catalog> {
  await requireFew(session, most);
  const { rows } = await session.query<{ catalog: string }>(
    `WITH type AS MATERIALIZED (${COLUMN_TYPES}),
     attribute AS (
       SELECT attrelid, json_agg(json_build_object('name', attname, 'number', attnum, 'type', atttypid::text,
           'stable', stable, 'labelled', labelled,
           'missing', CASE WHEN atthasmissing THEN md5(attmissingval::text) END) ORDER BY attnum) AS columns
       FROM pg_attribute JOIN type ON type.oid = atttypid
       WHERE attnum > 0 AND NOT attisdropped AND attgenerated <> 'v' GROUP BY attrelid
     ),
     found AS (
       SELECT c.oid, nspname, relname, relfilenode, relpersistence, reltablespace, reltuples, relpages, coalesce(columns, '[]') AS columns,
         has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AS readable
       FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace LEFT JOIN attribute ON attrelid = c.oid
       WHERE relkind = 'r' AND relpersistence <> 't'
         AND nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
     )
     SELECT json_build_object(
       'labels', (SELECT coalesce(md5(string_agg(oid::text || enumlabel, ',' ORDER BY oid)), '') FROM pg_enum),
       'tables', (SELECT coalesce(json_agg(json_build_object('oid', oid::text, 'schema', nspname, 'name', relname,
         'relfilenode', relfilenode::text, 'rows', reltuples, 'pages', relpages, 'logged', relpersistence = 'p',
         'default_tablespace', reltablespace = 0, 'readable', readable,
         'row_security', readable AND row_security_active(oid), 'columns', columns)), '[]') FROM found)) AS catalog`,
  );
  return JSON.parse(rows[0]?.catalog ?? '{}') as Catalog;
}

/** Both sides of a table; null: it does not exist there. */
export interface TablePair {
  schema: string;
  name: string;
  before: FoundTable | null;
  after: FoundTable | null;
}

const byText = (a: string, b: string) => Number(a > b) - Number(a < b);

/** Tables with the same name, in the order of their names. */
export function pairTables(before: Catalog, after: Catalog): TablePair[] {
  const pairs = new Map<string, TablePair>();
  for (const [side, { tables }] of Object.entries({ before, after })) {
    for (const table of tables) {
      const { schema, name } = table;
      const identity = JSON.stringify([schema, name]);
      const pair = pairs.get(identity) ?? { schema, name, before: null, after: null };
      pairs.set(identity, { ...pair, [side]: table });
    }
  }
  return [...pairs.values()].toSorted((a, b) => byText(a.schema, b.schema) || byText(a.name, b.name));
}

/** The columns that both sides have: these are compared. */
export const commonColumns = (before: FoundTable, after: FoundTable) => {
  const others = new Set(before.columns.map(({ name }) => name));
  return after.columns.filter(({ name }) => others.has(name)).map(({ name }) => name);
};

/**
 * Whether equal blocks mean equal rows: both files come from one, and the text of a row in them depends on
 * nothing else that could have changed.
 * @param sameLabels the enums of both sides have the same labels
 */
export function comparableByBlocks(before: FoundTable, after: FoundTable, sameLabels: boolean): boolean {
  if (before.relfilenode !== after.relfilenode) return false;
  if (![before, after].every(({ logged, default_tablespace }) => logged && default_tablespace)) return false;
  const others = new Map(before.columns.map((column) => [column.name, column]));
  return after.columns.every(({ name, number, type, stable, labelled, missing }) => {
    const other = others.get(name);
    if (!other) return true;
    const isSame = other.number === number && other.type === type && other.missing === missing;
    return isSame && stable && (sameLabels || !labelled);
  });
}
