import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { identifier } from '../postgres/connect.ts';
import { admitTenantCode, inBranch } from '../rows/branch-session.ts';
import { cellsOf } from '../rows/cells.ts';
import { describeTable, fromTable, wireColumn } from '../rows/describe-table.ts';
import { keyOperators } from '../rows/key-operators.ts';
import { readPage } from '../rows/read-page.ts';
import { comparedColumns, comparisonsOf, filterOf, orderBy } from '../rows/row-filter.ts';
import { fromMark, keyOrder, orderedTable, seek, seekable } from '../rows/seek.ts';

/**
 * A page of the rows that meet all conditions, in the requested order and then that of the primary key; without both, in
 * the order in which the server reads them.
 * @throws HostError TABLE_NOT_FOUND, COLUMN_NOT_FOUND, INVALID_CALL, STATEMENT_REFUSED, TIME_LIMIT_REACHED, HOST_BUSY
 */
export function listRows(host: Host, params: Params<'row.list'>): Promise<MethodResult<'row.list'>> {
  const { limit, offset, filter, order } = params;
  const isSelection = filter.length > 0 || order.length > 0;
  return inBranch(host, params, 'read', async (session) => {
    const description = await describeTable(session, params);
    const table = orderedTable(description, params);
    // The marks are about all rows in the order of the key.
    const hasMarks = table && offset > 0 && !isSelection;
    const marked = hasMarks ? seekable(table, await keyOperators(session, [description])) : null;
    const comparisons = await comparisonsOf(session, comparedColumns(description, filter));
    await admitTenantCode(session);
    const { columns, estimated_rows } = description;
    const header = { columns: columns.map(wireColumn), estimated_rows };
    const begin = marked && (await seek(host.rows.marks, session, marked, offset));
    if (begin === 'beyond') return { ...header, rows: [], has_more: false };
    const { conditions, values } = filterOf(description, filter, comparisons);
    if (marked && begin) conditions.push(fromMark(marked));
    const sorted = [...orderBy(description, order), ...(table ? [keyOrder(table)] : [])];
    const source = `
      SELECT ${columns.map(({ name }) => `t.${identifier(name)}`).join(', ')} FROM ${fromTable(description, params)} AS t
      ${conditions.length > 0 ? `WHERE ${conditions.join(' AND ')}` : ''}
      ${sorted.length > 0 ? `ORDER BY ${sorted.join(', ')}` : ''}
      OFFSET ${begin ? 0 : offset} LIMIT ${limit + 1}`;
    const page = `SELECT pg_catalog.row_number() OVER (), ${cellsOf(columns, 'r')} FROM (${source}) AS r`;
    const { rows, hasMore } = await readPage(session, columns, page, begin ?? values, limit);
    return { ...header, rows, has_more: hasMore };
  });
}
