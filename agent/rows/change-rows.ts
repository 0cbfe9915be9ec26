import type { Params, Result } from '../../shared/protocol/operations.ts';
import type { RowId, Scalar } from '../../shared/protocol/tables.ts';
import type { Host } from '../host.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { HostError } from '../servers/host-error.ts';
import { admitTenantCode, inBranch } from './branch-session.ts';
import { cellsOf, inputOf, parameterOf, textOf } from './cells.ts';
import { columnOf, describeTable, fromTable, type TableDescription, wireColumn } from './describe-table.ts';
import { readPage } from './read-page.ts';

/** PostgreSQL's code for an action that a trigger stopped. */
const TRIGGERED_ACTION = '09000';

/**
 * Changes one cell.
 * @throws HostError TABLE_NOT_FOUND, KEY_NOT_UNIQUE, INVALID_CALL, ROW_NOT_FOUND, ROW_CHANGED, STATEMENT_REFUSED,
 *   HOST_TIMEOUT, HOST_BUSY
 */
export function updateRow(host: Host, params: Params<'row.update'>): Promise<Result<'row.update'>> {
  return inBranch(host, params, 'change', async (session) => {
    const table = await describeTable(session, params);
    await admitTenantCode(session);
    const place = fromTable(table, params);
    const { isRow, parameters } = rowCondition(table, params.primary_key);
    const column = columnOf(table, params.column);
    const values = [...parameters(params.id), inputOf(column, params.value)];
    const expectation = params.expected && inputOf(column, params.expected.value);
    // The text of the whole value, in which two are the same only if they look the same to clients.
    const theSame = params.expected
      ? `(${textOf(column, `t.${identifier(column.name)}`)}) COLLATE pg_catalog."C" IS NOT DISTINCT FROM
         (${textOf(column, parameterOf(column, values.length + 1, column.base_type))}) COLLATE pg_catalog."C"`
      : 'true';
    const expected = params.expected ? [expectation] : [];
    const { rows } = await readPage(
      session,
      table.columns,
      `UPDATE ${place} AS t SET ${identifier(column.name)} = ${parameterOf(column, values.length)}
       WHERE ${isRow} AND ${theSame} RETURNING 1::bigint, ${cellsOf(table.columns, 't')}`,
      [...values, ...expected],
      1,
    );
    const [row] = rows;
    if (!row) throw await whyNothing();
    return { columns: table.columns.map(wireColumn), row };

    async function whyNothing() {
      const found = await session.query<{ same: string }>(
        `SELECT ${theSame} AS same, $${values.length}::pg_catalog.text FROM ${place} AS t WHERE ${isRow}`,
        [...values, ...expected],
      );
      if (!found.rows[0]) return new HostError('ROW_NOT_FOUND', 'there is no such row');
      if (found.rows[0].same === 'f')
        return new HostError('ROW_CHANGED', 'the cell holds another value than expected');
      const message = 'a trigger or a policy of the table left the row as it is';
      return new HostError('STATEMENT_REFUSED', message, TRIGGERED_ACTION);
    }
  });
}

/**
 * Deletes rows, all or none of those that exist.
 * @throws HostError TABLE_NOT_FOUND, KEY_NOT_UNIQUE, INVALID_CALL, STATEMENT_REFUSED, HOST_TIMEOUT, HOST_BUSY
 */
export function deleteRows(host: Host, params: Params<'row.delete'>): Promise<Result<'row.delete'>> {
  return inBranch(host, params, 'change', async (session) => {
    const table = await describeTable(session, params);
    await admitTenantCode(session);
    const { isRow, parameters } = rowCondition(table, params.primary_key);
    const statement = `DELETE FROM ${fromTable(table, params)} AS t WHERE ${isRow}`;
    const gone = new Map<string, boolean>();
    for (const id of params.ids) {
      const values = parameters(id);
      const name = JSON.stringify(values);
      if (!gone.has(name)) gone.set(name, await deletesRow(session, statement, values));
    }
    const missing = params.ids.flatMap((id, place) =>
      gone.get(JSON.stringify(parameters(id))) ? [] : [place],
    );
    return { deleted: [...gone.values()].filter((deleted) => deleted).length, missing };
  });
}

async function deletesRow(session: Session, statement: string, values: (string | null)[]): Promise<boolean> {
  const { rowCount } = await session.query(statement, values);
  return rowCount === 1;
}

/** SQL that tells one row of the table `t` from all others by its key, with the parameters from $1 on. */
function rowCondition(table: TableDescription, named: readonly string[]) {
  const key = table.keys.find(
    ({ columns }) => columns.length === named.length && columns.every(({ name }) => named.includes(name)),
  );
  if (!key) throw new HostError('KEY_NOT_UNIQUE', "these columns are not the table's key");
  const columns = named.map((name) => columnOf(table, name));
  const conditions = columns.map((column, place) => {
    const equal = key.columns.find(({ name }) => name === column.name)?.operators.equal;
    return `t.${identifier(column.name)} ${equal} ${parameterOf(column, place + 1, column.base_type)}`;
  });
  return {
    isRow: conditions.join(' AND '),
    parameters(id: RowId): (string | null)[] {
      if (id.length !== columns.length)
        throw new HostError('INVALID_CALL', 'an id has one value for each column of the key');
      return columns.map((column, place) => inputOf(column, id[place] as Scalar));
    },
  };
}
