import type { z } from 'zod';
import type { Column } from '../../shared/protocol/tables.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { HostError } from '../process/host-error.ts';

/** A column as statements need it. */
export type TableColumn = z.output<typeof Column> & {
  /** Id of its type, and name with its schema; of a domain, of the type beneath. */
  base_oid: string;
  base_type: string;
};

interface KeyColumn {
  name: string;
  /** Id of its class in the index, which names its operators. */
  operator_class: string;
}

/** Columns that identify a row. */
export interface Key {
  is_primary: boolean;
  columns: KeyColumn[];
}

export interface TableDescription {
  oid: string;
  /** `pg_class.relkind` */
  kind: string;
  estimated_rows: number | null;
  /** The columns that the login may read. */
  columns: TableColumn[];
  /** The primary key, and every other column that is unique and not null. */
  keys: Key[];
}

/** What a table has in it, for pages that begin at a mark. */
export interface TableState {
  /** The larger of estimate and statistics: these count rows immediately, but start at zero in a clone. */
  likely_rows: number;
  /** Changes when rows are inserted, deleted or get another key, as soon as the statistics are flushed. */
  state: string;
}

export const wireColumn = ({ name, type, nullable, is_primary_key }: TableColumn) => ({
  name,
  type,
  nullable,
  is_primary_key,
});

/** Oid of the B-tree access method. A key of another one (WITHOUT OVERLAPS) does not identify a row. */
const BTREE = 403;

/** Attribute numbers of the primary key; `NULL` without one. */
const PRIMARY_KEY = `
  (SELECT (indkey::int[])[:indnkeyatts - 1] FROM pg_index JOIN pg_class AS index ON index.oid = indexrelid
   WHERE indrelid = c.oid AND indisprimary AND index.relam = ${BTREE})`;

/**
 * Tables that the login may read: `pg_class c` with its schema `n`, the attribute numbers of its primary key
 * (`pk`), and whether all columns may be read. `OFFSET 0` makes PostgreSQL compute both once per table.
 */
export const READABLE = `
  pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace,
  LATERAL (SELECT ${PRIMARY_KEY}, has_table_privilege(c.oid, 'SELECT') OFFSET 0) AS found (pk, is_whole)
  WHERE relkind IN ('r', 'p', 'v', 'm', 'f')
    AND has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT')`;

/**
 * Columns of a `READABLE`, as JSON.
 * @param more further pairs of name and value for each column
 * @param join tables that these pairs need
 */
export const columnsOf = (more = '', join = '') => `
  (SELECT coalesce(json_agg(json_build_object(
     'name', attname,
     'type', format_type(atttypid, atttypmod),
     'nullable', NOT (attnotnull OR typnotnull),
     'is_primary_key', coalesce(attnum = ANY (pk), false)${more}
   ) ORDER BY attnum), '[]')
   FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid ${join}
   WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
     AND (is_whole OR has_column_privilege(c.oid, attnum, 'SELECT')))`;

export const KIND = `CASE relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'partitioned_table' WHEN 'v' THEN 'view'
  WHEN 'm' THEN 'materialized_view' ELSE 'foreign_table' END`;

export const PRIMARY_KEY_NAMES = `
  (SELECT coalesce(json_agg(attname ORDER BY position), '[]')
   FROM unnest(pk) WITH ORDINALITY AS key (number, position)
   JOIN pg_attribute ON attrelid = c.oid AND attnum = number)`;

export const ESTIMATE = "CASE WHEN relkind IN ('r', 'p', 'm') AND reltuples >= 0 THEN reltuples::bigint END";

/** The type of a column's values. A domain can be based on another domain. */
export const BASE_TYPE = `
  LATERAL (SELECT CASE WHEN typtype <> 'd' THEN atttypid ELSE
    (WITH RECURSIVE base (oid, kind, next) AS (
       SELECT atttypid, typtype, typbasetype
       UNION ALL
       SELECT of_base.oid, of_base.typtype, of_base.typbasetype
       FROM base JOIN pg_type AS of_base ON of_base.oid = next WHERE kind = 'd'
     ) SELECT oid FROM base WHERE kind <> 'd') END OFFSET 0) AS of_values (base)`;

/** The type's catalog name, never SQL's short form: a bare `bit` is one bit. */
const TYPE_NAME = `
  (SELECT format('%I.%I', nspname, typname) FROM pg_type JOIN pg_namespace ON pg_namespace.oid = typnamespace
   WHERE pg_type.oid = base)`;

/** Unique indexes, for `keysOf`. Joining them with their columns here would take longer than all the rest. */
const INDEXES = `
  (SELECT coalesce(json_agg(json_build_object('is_primary', indisprimary, 'numbers', (indkey::int[])[:indnkeyatts - 1],
     'operator_classes', indclass::oid[]) ORDER BY indisprimary DESC, indexrelid), '[]')
   FROM pg_index JOIN pg_class AS index ON index.oid = indexrelid
   WHERE indrelid = c.oid AND c.relkind IN ('r', 'p') AND index.relam = ${BTREE}
     AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL)`;

/** A column that is marked as not null can have nulls until its constraint was validated. */
const NOT_VALIDATED = `
  (SELECT coalesce(json_agg(conkey[1]), '[]') FROM pg_constraint
   WHERE conrelid = c.oid AND contype = 'n' AND NOT convalidated)`;

const LIKELY_ROWS = 'greatest(reltuples, pg_stat_get_live_tuples(c.oid), 0)::bigint';

/** A key is indexed, so changing it is never a HOT update. */
const STATE = `
  (SELECT format('%s/%s/%s/%s', c.relfilenode, sum(pg_stat_get_tuples_inserted(part)),
     sum(pg_stat_get_tuples_deleted(part)),
     sum(pg_stat_get_tuples_updated(part) - pg_stat_get_tuples_hot_updated(part)))
   FROM (SELECT c.oid AS part UNION SELECT relid FROM pg_partition_tree(c.oid)) AS parts)`;

/** Objects below this id come with PostgreSQL, and no tenant can change them (`FirstNormalObjectId`). */
const FIRST_OWN_OID = 16_384;

/** Transactions that wrote rows of the catalog, in the order of what they are about. */
const writtenBy = (rows: string, order: string) => `ARRAY(SELECT xmin FROM ${rows} ORDER BY ${order})`;

/**
 * Changes with everything that the description is made of: each change of the catalog writes the row again, in another
 * transaction. Null where the login may not read the whole table: rights on single columns are not in it.
 * @param oid SQL of the table's
 */
const versionOf = (oid: string) => `
  CASE WHEN has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(relnamespace, 'USAGE')
    THEN concat_ws('/', c.oid, c.xmin, relnamespace::regnamespace,
      ${writtenBy(`pg_attribute WHERE attrelid = ${oid} AND attnum > 0`, 'attnum')},
      ${writtenBy(`pg_index WHERE indrelid = ${oid}`, 'indexrelid')},
      ${writtenBy(`pg_constraint WHERE conrelid = ${oid}`, 'oid')}) END`;

/** Types that are not PostgreSQL's can change without a change of the table. */
const HAS_OWN_TYPES = `EXISTS (SELECT FROM pg_attribute
  WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND atttypid >= ${FIRST_OWN_OID})`;

/** What changes without a new version: it is read for each page. */
const PRESENT = `'estimated_rows', ${ESTIMATE}`;

type Present = Pick<TableDescription, 'estimated_rows'> & { version: string | null };

/** What a session knows of a table from an operation before. */
export interface KnownTable {
  version: string;
  description: TableDescription;
  /** A page of it did not fit into a message as it is. */
  isLarge: boolean;
}

/** Of the tables that a session has described, by name; it is reset in between, but remains the same login's. */
const described = new WeakMap<Session, Map<string, KnownTable>>();
/** Of a session, which lives for seconds. */
const DESCRIBED_MAX = 8;

interface TableName {
  schema: string;
  table: string;
}

const nameOf = ({ schema, table }: TableName) => JSON.stringify([schema, table]);

/** What the session knows of the table, to be confirmed. */
export const knownTable = (session: Session, name: TableName): KnownTable | null =>
  described.get(session)?.get(nameOf(name)) ?? null;

/**
 * The known description, if it still holds: planning the long query takes most of its time. The table is found by its
 * id, whose version has its name. As `describeTable`, to be called before any code of the tenant runs.
 * @param next SQL of a function to call with it, unless the table is gone
 * @returns null if the name is of another table now, or the table is another one; the session forgets it then
 */
export async function confirmTable(
  session: Session,
  name: TableName,
  { version: knownVersion, description }: KnownTable,
  next?: string,
): Promise<TableDescription | null> {
  const oid = BigInt(description.oid).toString();
  // Without a parameter, which would take half as long again.
  const { rows } = await session.query<{ present: string }>(
    `SELECT json_build_object(${PRESENT}, 'version', ${versionOf(oid)}) AS present${next ? `, ${next}` : ''}
     FROM pg_class AS c WHERE c.oid = ${oid}`,
  );
  const { version = null, ...present } = rows[0] ? (JSON.parse(rows[0].present) as Present) : {};
  if (version === knownVersion) return { ...description, ...present };
  described.get(session)?.delete(nameOf(name));
  return null;
}

function remember(
  session: Session,
  name: TableName,
  version: string | null,
  description: TableDescription,
): void {
  if (version === null) return;
  const ofSession = described.get(session) ?? new Map();
  if (ofSession.size < DESCRIBED_MAX) ofSession.set(nameOf(name), { version, description, isLarge: false });
  described.set(session, ofSession);
}

/**
 * Describes a table from the catalog. To be called before any code of the tenant runs in the session: only
 * the session's initial search path ensures that no name in the query is resolved to an object of the tenant.
 * @throws HostError TABLE_NOT_FOUND also for a table that the login may not read
 */
export async function describeTable(session: Session, reference: TableName): Promise<TableDescription> {
  const known = knownTable(session, reference);
  const again = known && (await confirmTable(session, reference, known));
  if (again) return again;
  const columns = columnsOf(
    `, 'base_oid', base::text, 'base_type', ${TYPE_NAME}, 'number', attnum, 'is_marked_not_null', attnotnull`,
    `CROSS JOIN ${BASE_TYPE}`,
  );
  const { rows } = await session.query<{ description: string }>(
    `SELECT json_build_object('oid', c.oid::text, 'kind', relkind, 'columns', ${columns}, 'indexes', ${INDEXES},
       'not_validated', ${NOT_VALIDATED}, ${PRESENT},
       'version', CASE WHEN NOT ${HAS_OWN_TYPES} THEN ${versionOf('c.oid')} END) AS description
     FROM ${READABLE} AND nspname = $1::text AND relname = $2::text`,
    [reference.schema, reference.table],
  );
  if (!rows[0]) throw new HostError('TABLE_NOT_FOUND', 'there is no such table');
  const { indexes, not_validated, version, ...found } = JSON.parse(rows[0].description) as Found;
  const keys = indexes.flatMap((index) => keyOf(index, found.columns, not_validated));
  const description = { ...found, keys };
  remember(session, reference, version, description);
  return description;
}

/** To be called before any code of the tenant runs in the session, as `describeTable`. */
export async function readTableState(session: Session, { oid }: TableDescription): Promise<TableState> {
  const { rows } = await session.query<{ likely_rows: string; state: string }>(
    `SELECT ${LIKELY_ROWS} AS likely_rows, ${STATE} AS state FROM pg_class AS c WHERE oid = $1`,
    [oid],
  );
  const [found] = rows;
  // The description has the same snapshot.
  if (!found) throw new Error('a table that was described is gone');
  return { likely_rows: Number(found.likely_rows), state: found.state };
}

interface Index {
  is_primary: boolean;
  /** Attribute numbers of its columns. */
  numbers: number[];
  operator_classes: string[];
}

interface FoundColumn extends TableColumn {
  number: number;
  is_marked_not_null: boolean;
}

interface Found extends Omit<TableDescription, 'keys' | 'columns'>, Present {
  columns: FoundColumn[];
  indexes: Index[];
  /** Attribute numbers of columns that can have nulls although they are marked. */
  not_validated: number[];
}

/** The key that the index makes of its columns, if the login may read them and they identify a row. */
function keyOf(index: Index, columns: readonly FoundColumn[], notValidated: readonly number[]): Key[] {
  const { is_primary, numbers, operator_classes } = index;
  const found = numbers.flatMap((number) => columns.filter((column) => column.number === number));
  if (found.length < numbers.length) return [];
  const neverNull = ({ number, is_marked_not_null }: FoundColumn) =>
    is_marked_not_null && !notValidated.includes(number);
  if (!is_primary && !(found.length === 1 && found.every(neverNull))) return [];
  const operatorClass = (at: number) => operator_classes[at] ?? '';
  return [
    { is_primary, columns: found.map(({ name }, at) => ({ name, operator_class: operatorClass(at) })) },
  ];
}

/** The table in a FROM clause. ONLY: a parent's key does not cover the tables that inherit from it. */
export const fromTable = ({ kind }: TableDescription, { schema, table }: TableName) =>
  `${kind === 'r' ? 'ONLY ' : ''}${identifier(schema)}.${identifier(table)}`;

/** @throws HostError COLUMN_NOT_FOUND */
export function columnOf({ columns }: TableDescription, name: string): TableColumn {
  const column = columns.find((candidate) => candidate.name === name);
  if (!column) throw new HostError('COLUMN_NOT_FOUND', `the table has no column ${identifier(name)}`);
  return column;
}

/** Strategies of a B-tree's operators. */
const STRATEGIES = { equal: 3, at_least: 4 } as const;

/** By operator class. */
export type KeyOperators = ReadonlyMap<string, Record<keyof typeof STRATEGIES, string>>;

/**
 * Finds the operators with which the indexes of these tables' keys compare. By name, a tenant's own operator
 * could be found instead. To be called before any code of the tenant runs in the session. It is a statement
 * of its own because most pages need none, and because planning it as part of the description takes longer.
 */
export async function keyOperators(
  session: Session,
  tables: readonly TableDescription[],
): Promise<KeyOperators> {
  const keys = tables.flatMap((table) => table.keys);
  const classes = new Set(keys.flatMap(({ columns }) => columns.map((column) => column.operator_class)));
  const { rows } = await session.query<{ class: string; strategy: string; operator: string }>(
    `SELECT of_key.oid::text AS class, amopstrategy::text AS strategy, format('OPERATOR(%I.%s)', nspname, oprname) AS operator
     FROM pg_opclass AS of_key JOIN pg_amop ON amopfamily = opcfamily AND amoplefttype = opcintype
       AND amoprighttype = opcintype AND amopstrategy IN (${Object.values(STRATEGIES)})
     JOIN pg_operator ON pg_operator.oid = amopopr JOIN pg_namespace ON pg_namespace.oid = oprnamespace
     WHERE of_key.oid = ANY ($1::oid[])`,
    [[...classes]],
  );
  return new Map(
    [...classes].map((name) => {
      const found = (strategy: number) =>
        rows.find((row) => row.class === name && row.strategy === String(strategy))?.operator ?? '';
      return [name, { equal: found(STRATEGIES.equal), at_least: found(STRATEGIES.at_least) }];
    }),
  );
}
