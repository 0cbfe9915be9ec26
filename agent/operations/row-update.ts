import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { identifier } from '../postgres/connect.ts';
import { admitTenantCode, inBranch } from '../rows/branch-session.ts';
import { cellsOf, inputOf, parameterOf, textOf } from '../rows/cells.ts';
import { columnOf, describeTable, fromTable, wireColumn } from '../rows/describe-table.ts';
import { readPage } from '../rows/read-page.ts';
import { rowCondition } from '../rows/row-condition.ts';
import { HostError } from '../servers/host-error.ts';

/** SQLSTATE `triggered_action_exception`. */
const TRIGGERED_ACTION = '09000';

/**
 * Changes one cell.
 * @throws HostError TABLE_NOT_FOUND, KEY_NOT_UNIQUE, COLUMN_NOT_FOUND, INVALID_CALL, ROW_NOT_FOUND, ROW_CHANGED,
 *   STATEMENT_REFUSED, HOST_TIMEOUT, HOST_BUSY
 */
export function updateRow(host: Host, params: Params<'row.update'>): Promise<MethodResult<'row.update'>> {
  return inBranch(host, params, 'change', async (session) => {
    const description = await describeTable(session, params);
    await admitTenantCode(session);
    const table = fromTable(description, params);
    const { isRow, parameters } = rowCondition(description, params.primary_key);
    const column = columnOf(description, params.column);
    const values = [...parameters(params.id), inputOf(column, params.value)];
    const expectation = params.expected && inputOf(column, params.expected.value);
    // Compares the text of the whole value: two values are equal only if clients see them as equal.
    const isExpected = params.expected
      ? `(${textOf(column, `t.${identifier(column.name)}`)}) COLLATE pg_catalog."C" IS NOT DISTINCT FROM
         (${textOf(column, parameterOf(column, values.length + 1, column.base_type))}) COLLATE pg_catalog."C"`
      : 'true';
    const expected = params.expected ? [expectation] : [];
    const { columns } = description;
    const { rows } = await readPage(
      session,
      columns,
      `UPDATE ${table} AS t SET ${identifier(column.name)} = ${parameterOf(column, values.length)}
       WHERE ${isRow} AND ${isExpected} RETURNING 1::bigint, ${cellsOf(columns, 't')}`,
      [...values, ...expected],
      1,
    );
    const [row] = rows;
    if (!row) throw await reasonForNoChange();
    return { columns: columns.map(wireColumn), row };

    async function reasonForNoChange() {
      const found = await session.query<{ is_expected: string }>(
        `SELECT ${isExpected} AS is_expected, $${values.length}::pg_catalog.text FROM ${table} AS t WHERE ${isRow}`,
        [...values, ...expected],
      );
      if (!found.rows[0]) return new HostError('ROW_NOT_FOUND', 'there is no such row');
      if (found.rows[0].is_expected === 'f')
        return new HostError('ROW_CHANGED', 'the cell holds another value than expected');
      const message = 'a trigger or a policy of the table left the row as it is';
      return new HostError('STATEMENT_REFUSED', message, TRIGGERED_ACTION);
    }
  });
}
