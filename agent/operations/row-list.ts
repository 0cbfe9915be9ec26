import type { Params, Result } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { admitTenantCode, inBranch } from '../rows/branch-session.ts';
import { cellsOf } from '../rows/cells.ts';
import { describeTable, fromTable, type TableDescription, wireColumn } from '../rows/describe-table.ts';
import { layMarks, marksNear } from '../rows/lay-marks.ts';
import { readPage } from '../rows/read-page.ts';
import { fromMark, isSeekable, type OrderedTable, orderedTable, orderOf, seek } from '../rows/seek.ts';

type Page = Result<'row.list'>;

/**
 * A page of rows in the order of the primary key; without one, in whatever order the server reads them.
 * @throws HostError TABLE_NOT_FOUND, STATEMENT_REFUSED, HOST_TIMEOUT, HOST_BUSY
 */
export async function listRows(host: Host, params: Params<'row.list'>): Promise<Page> {
  const { page, table } = await inBranch(host, params, 'read', async (session) => {
    const description = await describeTable(session, params);
    await admitTenantCode(session);
    const table = orderedTable(description, params);
    return { page: await pageOf(host, session, params, description, table), table };
  });
  if (table) layMarks(host, params, table);
  return page;
}

async function pageOf(
  host: Host,
  session: Session,
  params: Params<'row.list'>,
  description: TableDescription,
  table: OrderedTable | null,
): Promise<Page> {
  const { limit, offset } = params;
  const { columns, estimated_rows } = description;
  const answer = { columns: columns.map(wireColumn), estimated_rows };
  const isSought = table && isSeekable(table) && offset > 0;
  if (isSought) await marksNear(host, params, table, offset);
  const begin = isSought ? await seek(host.rows.marks, session, table, offset) : null;
  if (begin === 'beyond') return { ...answer, rows: [], has_more: false };
  const source = `
    SELECT ${columns.map(({ name }) => identifier(name)).join(', ')} FROM ${fromTable(description, params)}
    ${begin ? `WHERE ${fromMark(table as OrderedTable)}` : ''} ${table ? orderOf(table) : ''}
    OFFSET ${begin ? 0 : offset} LIMIT ${limit + 1}`;
  const page = `SELECT pg_catalog.row_number() OVER (), ${cellsOf(columns, 'r')} FROM (${source}) AS r`;
  const { rows, hasMore } = await readPage(session, columns, page, begin ?? [], limit);
  return { ...answer, rows, has_more: hasMore };
}
