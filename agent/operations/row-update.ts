import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { admitTenantCode, inBranch } from '../rows/branch-session.ts';
import { inputOf } from '../rows/cells.ts';
import { updateRow } from '../rows/change-row.ts';
import { columnOf, describeTable, wireColumn } from '../rows/describe-table.ts';
import { keyOperators } from '../rows/key-operators.ts';
import { HostError, ofParameter } from '../servers/host-error.ts';

const CONFLICTS = {
  missing: () => new HostError('ROW_NOT_FOUND', 'there is no such row'),
  changed: () => new HostError('ROW_CHANGED', 'the cell holds another value than expected'),
};

/**
 * Changes one cell.
 * @throws HostError TABLE_NOT_FOUND, KEY_NOT_UNIQUE, COLUMN_NOT_FOUND, INVALID_CALL, ROW_NOT_FOUND, ROW_CHANGED,
 *   STATEMENT_REFUSED, TIME_LIMIT_REACHED, HOST_BUSY
 */
export function updateCell(host: Host, params: Params<'row.update'>): Promise<MethodResult<'row.update'>> {
  const { primary_key, id, column, value, expected } = params;
  return inBranch(host, params, 'change', async (session) => {
    const description = await describeTable(session, params);
    // Where they have the names that the client gave them.
    const cell = ofParameter('column', () => columnOf(description, column));
    ofParameter('value', () => inputOf(cell, value));
    if (expected) ofParameter('expected', () => inputOf(cell, expected.value));
    const operators = await keyOperators(session, [description]);
    await admitTenantCode(session);
    const { row, conflict } = await updateRow(
      { session, description, operators, reference: params },
      { primary_key, id, values: [{ column, value }], expected: expected ? [{ column, ...expected }] : [] },
    );
    if (conflict !== null) throw CONFLICTS[conflict]();
    return { columns: description.columns.map(wireColumn), row: row ?? [] };
  });
}
