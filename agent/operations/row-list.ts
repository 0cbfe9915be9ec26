import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { admitTenantCode, inBranch } from '../rows/branch-session.ts';
import { cellsOf } from '../rows/cells.ts';
import { describeTable, fromTable, wireColumn } from '../rows/describe-table.ts';
import type { PageMarks } from '../rows/page-marks.ts';
import { readPage } from '../rows/read-page.ts';
import { fromMark, isSeekable, type OrderedTable, orderedTable, orderOf, seek } from '../rows/seek.ts';

/**
 * A page of rows in the order of the primary key; without one, in the order in which the server reads them.
 * @throws HostError TABLE_NOT_FOUND, STATEMENT_REFUSED, HOST_TIMEOUT, HOST_BUSY
 */
export function listRows(host: Host, params: Params<'row.list'>): Promise<MethodResult<'row.list'>> {
  return inBranch(host, params, 'read', async (session) => {
    const description = await describeTable(session, params);
    await admitTenantCode(session);
    const { columns, estimated_rows } = description;
    const header = { columns: columns.map(wireColumn), estimated_rows };
    const table = orderedTable(description, params);
    const begin = await beginningOf(host.rows.marks, session, table, params.offset);
    if (begin === 'beyond') return { ...header, rows: [], has_more: false };
    const { limit, offset } = params;
    const source = `
      SELECT ${columns.map(({ name }) => identifier(name)).join(', ')} FROM ${fromTable(description, params)}
      ${begin ? `WHERE ${fromMark(table as OrderedTable)}` : ''} ${table ? orderOf(table) : ''}
      OFFSET ${begin ? 0 : offset} LIMIT ${limit + 1}`;
    const page = `SELECT pg_catalog.row_number() OVER (), ${cellsOf(columns, 'r')} FROM (${source}) AS r`;
    const { rows, hasMore } = await readPage(session, columns, page, begin ?? [], limit);
    return { ...header, rows, has_more: hasMore };
  });
}

/** Key of the page's first row; null where the page is found by OFFSET. */
function beginningOf(marks: PageMarks, session: Session, table: OrderedTable | null, offset: number) {
  return table && isSeekable(table) && offset > 0 ? seek(marks, session, table, offset) : null;
}
