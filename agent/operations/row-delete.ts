import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { admitTenantCode, inBranch } from '../rows/branch-session.ts';
import { describeTable, fromTable } from '../rows/describe-table.ts';
import { keyOperators } from '../rows/key-operators.ts';
import { rowCondition } from '../rows/row-condition.ts';

/**
 * Deletes rows in one transaction. Ids that name no row are reported, not refused.
 * @throws HostError TABLE_NOT_FOUND, KEY_NOT_UNIQUE, INVALID_CALL, STATEMENT_REFUSED, TIME_LIMIT_REACHED, HOST_BUSY
 */
export function deleteRows(host: Host, params: Params<'row.delete'>): Promise<MethodResult<'row.delete'>> {
  return inBranch(host, params, 'change', async (session) => {
    const table = await describeTable(session, params);
    const operators = await keyOperators(session, [table]);
    await admitTenantCode(session);
    const { isRow, parameters } = rowCondition(table, operators, params.primary_key);
    const statement = `DELETE FROM ${fromTable(table, params)} AS t WHERE ${isRow}`;
    const ids = params.ids.map((id, at) => {
      const values = parameters(id, `ids.${at}`);
      return { name: JSON.stringify(values), values };
    });
    /** By id, since an id may be given twice. */
    const wasDeleted = new Map<string, boolean>();
    for (const { name, values } of ids) {
      if (!wasDeleted.has(name))
        wasDeleted.set(name, (await session.query(statement, values)).rowCount === 1);
    }
    return {
      deleted: [...wasDeleted.values()].filter(Boolean).length,
      missing: ids.flatMap(({ name }, index) => (wasDeleted.get(name) ? [] : [index])),
    };
  });
}
