import { BOUNDS } from '../../shared/protocol/bounds.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Cell } from '../../shared/protocol/tables.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { HostError } from '../process/host-error.ts';
import { cellsOf } from '../rows/cells.ts';
import { fromTable, type TableDescription, wireColumn } from '../rows/describe-table.ts';
import { REST_BYTES, readPage, TOO_MANY_COLUMNS } from '../rows/pages.ts';
import type { Difference, RowMark } from './compare-rows.ts';
import type { Comparison } from './comparison.ts';
import type { FoundTable } from './tables.ts';

type Wanted = Pick<Params<'row.diff'>, 'schema' | 'table' | 'limit' | 'after'>;

/**
 * A page of the rows of one table that differ.
 * @throws HostError TABLE_NOT_FOUND, KEY_NOT_UNIQUE, STATEMENT_REFUSED
 */
export async function changedRows(
  comparison: Comparison,
  { schema, table, limit, after: mark }: Wanted,
): Promise<MethodResult<'row.diff'>> {
  const pair = comparison.pairs.find((one) => one.schema === schema && one.name === table);
  const isReadable = [pair?.before, pair?.after].every((side) => side?.readable !== false);
  if (!pair || !isReadable) throw new HostError('TABLE_NOT_FOUND', 'there is no such table');
  const { descriptions, matching, method, differences } = await comparison.open(pair, mark);
  const { key } = matching;
  if (!key)
    throw new HostError(
      'KEY_NOT_UNIQUE',
      'the table has no key on both sides, so its rows are only counted',
      { path: 'table' },
    );
  if (mark && mark.length !== key.length)
    throw new HostError('INVALID_CALL', 'this page is of another key', { path: 'after' });
  const found: Difference[] = [];
  for await (const difference of differences) {
    found.push(difference);
    if (found.length > limit) break;
  }
  const page = found.slice(0, limit);
  const before = viewOf(descriptions.before, pair.before);
  const after = viewOf(descriptions.after, pair.after);
  const budget = (BOUNDS.messageBytes - REST_BYTES - before.bytes - after.bytes) / 2;
  if (budget < BOUNDS.messageBytes / 8)
    throw new HostError('STATEMENT_REFUSED', 'the names of the columns are too long', {
      sqlstate: TOO_MANY_COLUMNS,
    });
  const reference = { schema, table };
  const [old, fresh] = await Promise.all([
    cellsAt(
      comparison.before,
      before,
      reference,
      page.map((one) => one.before),
      budget,
    ),
    cellsAt(
      comparison.after,
      after,
      reference,
      page.map((one) => one.after),
      budget,
    ),
  ]);
  const rows = [];
  for (const [at, one] of page.entries()) {
    const row = { before: old.get(at) ?? null, after: fresh.get(at) ?? null };
    // The rest does not fit into the message.
    if ((one.before && !row.before) || (one.after && !row.after)) break;
    rows.push(row);
  }
  const last = page[rows.length - 1];
  const hasMore = rows.length < found.length;
  return {
    method,
    key,
    columns_before: before.columns.map(wireColumn),
    columns_after: after.columns.map(wireColumn),
    rows,
    next: hasMore && last ? ((last.after ?? last.before)?.key ?? null) : null,
  };
}

interface View {
  description: TableDescription | null;
  columns: TableDescription['columns'];
  bytes: number;
}

/** The columns that are shown: all but virtual ones. */
function viewOf(description: TableDescription | null, table: FoundTable | null): View {
  const names = new Set(table?.columns.map(({ name }) => name));
  const columns = description?.columns.filter(({ name }) => names.has(name)) ?? [];
  return { description, columns, bytes: Buffer.byteLength(JSON.stringify(columns.map(wireColumn))) };
}

/** The cells of rows, by their index in the page, as many as fit into the budget. */
async function cellsAt(
  session: Session,
  { description, columns }: View,
  reference: { schema: string; table: string },
  marks: readonly (RowMark | null)[],
  budget: number,
): Promise<Map<number, Cell[]>> {
  const wanted = marks.flatMap((mark, at) => (mark ? [{ at, ctid: mark.ctid }] : []));
  if (!description || wanted.length === 0) return new Map();
  const names = columns.map(({ name }) => `t.${identifier(name)}`).join(', ');
  const source = `
    SELECT mark.n, ${cellsOf(columns, 'r')}
    FROM pg_catalog.unnest($1::pg_catalog.tid[]) WITH ORDINALITY AS mark (ctid, n) CROSS JOIN LATERAL
      (SELECT ${names} FROM ${fromTable(description, reference)} AS t
       WHERE t.ctid OPERATOR(pg_catalog.=) mark.ctid OFFSET 0) AS r`;
  // A parameter is an array of texts, as PostgreSQL writes it.
  const tids = `{${wanted.map(({ ctid }) => `"${ctid}"`).join(',')}}`;
  const { rows } = await readPage(session, columns, source, [tids], wanted.length, Math.floor(budget));
  return new Map(rows.map((cells, at) => [wanted[at]?.at ?? at, cells]));
}
