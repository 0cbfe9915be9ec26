import { BOUNDS } from '../../shared/protocol/bounds.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Table } from '../../shared/protocol/tables.ts';
import type { Host } from '../host.ts';
import { inBranch } from '../rows/branch-session.ts';
import { columnsOf, ESTIMATE, KIND, PRIMARY_KEY_NAMES, READABLE } from '../rows/describe-table.ts';
import { HostError } from '../servers/host-error.ts';

/** Tables read at a time. They fit into memory even if each has as many columns as PostgreSQL allows. */
const BATCH = 20;
const BUDGET_BYTES = BOUNDS.messageBytes * 0.9;

/** Null for a table that a session holds in ACCESS EXCLUSIVE mode: measuring it would wait for that session. */
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
export function listTables(host: Host, params: Params<'table.list'>): Promise<MethodResult<'table.list'>> {
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
