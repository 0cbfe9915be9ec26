import type { z } from 'zod';
import { BOUNDS } from '../../shared/protocol/bounds.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { CONSTRAINT_KINDS, type Table, type TableDetails } from '../../shared/protocol/tables.ts';
import { HostError } from '../process/host-error.ts';
import { inBranch, type RowsHost } from '../rows/branch-session.ts';
import {
  BASE_TYPE,
  columnsOf,
  describeTable,
  ESTIMATE,
  KIND,
  PRIMARY_KEY_NAMES,
  READABLE,
} from '../rows/describe-table.ts';

/** Tables read at a time. They fit into memory even if each has as many columns as PostgreSQL allows. */
const BATCH = 20;
const BUDGET_BYTES = BOUNDS.messageBytes * 0.9;

/**
 * Null for a table that a session holds in ACCESS EXCLUSIVE mode: measuring it would wait for that session.
 */
const SIZE =
  'CASE WHEN NOT EXISTS (SELECT FROM taken WHERE relation = c.oid) THEN pg_total_relation_size(c.oid) END';

const TAKEN = `
  SELECT coalesce(indrelid, relation) FROM pg_locks LEFT JOIN pg_index ON indexrelid = relation
  WHERE mode = 'AccessExclusiveLock' AND locktype = 'relation'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`;

/**
 * Tables and views in the order of schema and name, as many as fit into one message of the link.
 * @throws HostError STATEMENT_REFUSED, TIME_LIMIT_REACHED, HOST_BUSY
 */
export function listTables(
  host: RowsHost,
  params: Params<'table.list'>,
): Promise<MethodResult<'table.list'>> {
  const { schema, after } = params;
  return inBranch(host, params, 'read', async (session) => {
    await session.query(
      `DECLARE listing NO SCROLL CURSOR FOR
       WITH taken (relation) AS MATERIALIZED (${TAKEN})
       SELECT json_build_object('schema', nspname, 'name', relname, 'kind', ${KIND}, 'columns', ${columnsOf()},
         'primary_key', ${PRIMARY_KEY_NAMES}, 'estimated_rows', ${ESTIMATE}, 'size_bytes', ${SIZE}) AS "table"
       FROM ${READABLE}
         AND CASE WHEN $1::text IS NULL THEN nspname !~ '^pg_' AND nspname <> 'information_schema'
                  ELSE nspname = $1::text END
         AND ($2::text IS NULL OR (nspname, relname) > ($2::name, $3::name))
       ORDER BY nspname, relname`,
      [schema, after?.schema ?? null, after?.name ?? null],
    );
    const tables: Table[] = [];
    let bytes = 0;
    for (;;) {
      const { rows } = await session.query<{ table: string }>(`FETCH ${BATCH} FROM listing`);
      for (const { table } of rows) {
        const parsed = JSON.parse(table) as Table;
        bytes += Buffer.byteLength(JSON.stringify(parsed)) + 1;
        if (bytes > BUDGET_BYTES) {
          if (tables.length > 0) return { tables, has_more: true };
          throw new HostError('STATEMENT_REFUSED', `the columns of ${parsed.name} are too many`, {
            sqlstate: '54011',
          });
        }
        tables.push(parsed);
      }
      if (rows.length < BATCH) return { tables, has_more: false };
    }
  });
}

/** Details of one column. The expression of a generated column is stored where defaults are. */
const DETAILS = `,
  'default', pg_get_expr(adbin, adrelid),
  'identity', CASE attidentity WHEN 'a' THEN 'always' WHEN 'd' THEN 'by_default' END,
  'generated', CASE attgenerated WHEN 's' THEN 'stored' WHEN 'v' THEN 'virtual' END,
  'enum_values', (SELECT json_agg(enumlabel ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = base),
  'comment', col_description(c.oid, attnum)`;

const COLUMNS = columnsOf(
  DETAILS,
  `LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum CROSS JOIN ${BASE_TYPE}`,
);

const names = (relation: string, numbers: string) => `
  (SELECT json_agg(attname ORDER BY position) FROM unnest(${numbers}) WITH ORDINALITY AS key (number, position)
   JOIN pg_attribute ON attrelid = ${relation} AND attnum = number)`;

/** A foreign key to a partitioned table has one row more for each partition. */
const NOT_OF_A_PARTITION = `
  NOT EXISTS (SELECT FROM pg_constraint AS parent WHERE parent.oid = own.conparentid AND parent.conrelid = c.oid)`;

const FOREIGN_KEYS = `
  (SELECT coalesce(json_agg(json_build_object('name', conname, 'columns', ${names('conrelid', 'conkey')},
     'referenced_schema', of_target.nspname, 'referenced_table', target.relname,
     'referenced_columns', ${names('confrelid', 'confkey')}) ORDER BY conname), '[]')
   FROM pg_constraint AS own JOIN pg_class AS target ON target.oid = confrelid
   JOIN pg_namespace AS of_target ON of_target.oid = target.relnamespace
   WHERE conrelid = c.oid AND contype = 'f' AND ${NOT_OF_A_PARTITION})`;

/** The definition of an index that was dropped since the snapshot is null. */
const INDEXES = `
  (SELECT coalesce(json_agg(json_build_object('name', index.relname, 'definition', definition,
     'unique', indisunique, 'primary', indisprimary, 'valid', indisvalid) ORDER BY index.relname), '[]')
   FROM pg_index JOIN pg_class AS index ON index.oid = indexrelid, pg_get_indexdef(indexrelid) AS definition
   WHERE indrelid = c.oid AND definition IS NOT NULL)`;

/** The definition of a constraint that was dropped since the snapshot is null. */
const CONSTRAINTS = `
  (SELECT coalesce(json_agg(json_build_object('name', conname, 'kind', kind, 'definition', definition,
     'validated', convalidated) ORDER BY conname), '[]')
   FROM pg_constraint AS own JOIN json_each_text('${JSON.stringify(CONSTRAINT_KINDS)}') AS of_kind (letter, kind)
     ON letter = contype::text, pg_get_constraintdef(own.oid) AS definition
   WHERE conrelid = c.oid AND definition IS NOT NULL AND ${NOT_OF_A_PARTITION})`;

/**
 * Describes a table for those who edit it.
 * @throws HostError TABLE_NOT_FOUND also for a table that the login may not read, STATEMENT_REFUSED,
 *   TIME_LIMIT_REACHED
 */
export function describeTableDetails(
  host: RowsHost,
  params: Params<'table.describe'>,
): Promise<MethodResult<'table.describe'>> {
  return inBranch(host, params, 'read', async (session) => {
    const { keys } = await describeTable(session, params);
    const { rows } = await session.query<{ details: string }>(
      `SELECT json_build_object('schema', nspname, 'name', relname, 'kind', ${KIND}, 'columns', ${COLUMNS},
         'primary_key', ${PRIMARY_KEY_NAMES}, 'estimated_rows', ${ESTIMATE}, 'foreign_keys', ${FOREIGN_KEYS},
         'indexes', ${INDEXES}, 'constraints', ${CONSTRAINTS},
         'comment', obj_description(c.oid, 'pg_class')) AS details
       FROM ${READABLE} AND nspname = $1::text AND relname = $2::text`,
      [params.schema, params.table],
    );
    const [row] = rows;
    // Both statements have one snapshot.
    if (!row) throw new Error('a table that was described is gone');
    if (Buffer.byteLength(row.details) > BUDGET_BYTES)
      throw new HostError('STATEMENT_REFUSED', 'the description of the table is too long', {
        sqlstate: '54000',
      });
    const details = JSON.parse(row.details) as Omit<z.output<typeof TableDetails>, 'keys'>;
    return { ...details, keys: keys.map(({ columns }) => columns.map(({ name }) => name)) };
  });
}
