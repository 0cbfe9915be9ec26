import type { Params, Result } from '../../shared/protocol/operations.ts';
import type { Host } from '../operations/host.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { admitTenantCode, inBranch } from './branch-session.ts';
import { cellsOf } from './cells.ts';
import { describeTable, fromTable, type Key, type TableDescription, wireColumn } from './describe-table.ts';
import { type KeyValues, stepFor } from './page-marks.ts';
import { readPage } from './read-page.ts';

/** A table whose rows are found by their key. */
interface OrderedTable {
  /** What the marks know it by. */
  name: string;
  description: TableDescription;
  from: string;
  key: Key;
}

/**
 * A page of rows in the order of the primary key; without one, in whatever order the server reads them.
 * @throws HostError TABLE_NOT_FOUND, STATEMENT_REFUSED, HOST_TIMEOUT, HOST_BUSY
 */
export function listRows(host: Host, params: Params<'row.list'>): Promise<Result<'row.list'>> {
  const { branch_id, limit, offset } = params;
  return inBranch(host, params, 'read', async (session) => {
    const description = await describeTable(session, params);
    await admitTenantCode(session);
    const { columns, estimated_rows } = description;
    const from = fromTable(description, params);
    const key = description.keys.find(({ is_primary }) => is_primary);
    const table = key && { name: `${branch_id}/${description.oid}`, description, from, key };
    const answer = { columns: columns.map(wireColumn), estimated_rows };

    const begin = table && isSeekable(table) && offset > 0 ? await seek(host, session, table, offset) : null;
    if (begin === 'beyond') return { ...answer, rows: [], has_more: false };
    const source = `
      SELECT ${columns.map(({ name }) => identifier(name)).join(', ')} FROM ${from}
      ${begin ? `WHERE ${fromMark(table as OrderedTable)}` : ''} ${table ? orderOf(table) : ''}
      OFFSET ${begin ? 0 : offset} LIMIT ${limit + 1}`;
    const page = `SELECT pg_catalog.row_number() OVER (), ${cellsOf(columns, 'r')} FROM (${source}) AS r`;
    const { rows, hasMore } = await readPage(session, columns, page, begin ?? [], limit);
    return { ...answer, rows, has_more: hasMore };
  });
}

const namesOf = ({ key }: OrderedTable) => key.columns.map(({ name }) => identifier(name)).join(', ');

const orderOf = (table: OrderedTable) => `ORDER BY ${namesOf(table)}`;

/** Rows are compared by one operator; the indexes of a key of several types can order by several. */
const isSeekable = ({ key }: OrderedTable) => new Set(key.columns.map(({ at_least }) => at_least)).size === 1;

/** Condition of the rows at or after a mark, whose values are the parameters from $1 on. */
function fromMark({ key, description }: OrderedTable): string {
  const values = key.columns.map(({ name }, place) => {
    const column = description.columns.find((candidate) => candidate.name === name);
    return `$${place + 1}::${column?.base_type}`;
  });
  const names = key.columns.map(({ name }) => identifier(name));
  const [operator] = key.columns.map(({ at_least }) => at_least);
  if (names.length === 1) return `${names} ${operator} ${values}`;
  return `ROW(${names.join(', ')}) ${operator} ROW(${values.join(', ')})`;
}

/**
 * Finds the key of the row at `offset` in the index, from the nearest mark on, and leaves marks on the way.
 * @returns its values; `beyond` when there are not so many rows
 */
async function seek(
  { rows: { marks } }: Host,
  session: Session,
  table: OrderedTable,
  offset: number,
): Promise<KeyValues | 'beyond'> {
  const { state, estimated_rows } = table.description;
  const mark = marks.before(table.name, state, offset);
  if (mark?.offset === offset) return mark.key;
  await session.query(
    `DECLARE seek NO SCROLL CURSOR FOR
     SELECT ${namesOf(table)} FROM ${table.from} ${mark ? `WHERE ${fromMark(table)}` : ''} ${orderOf(table)}`,
    mark?.key ?? [],
  );
  const step = stepFor(estimated_rows ?? 0);
  // The cursor stands before its first row.
  let at = (mark?.offset ?? 0) - 1;
  for (;;) {
    const next = Math.min((Math.floor(at / step) + 1) * step, offset);
    const { rows } = await session.query<KeyValues>({
      text: `FETCH RELATIVE ${next - at} FROM seek`,
      rowMode: 'array',
    });
    const [key] = rows;
    if (!key) return 'beyond';
    if (next > 0 && next % step === 0) marks.note(table.name, state, next, key);
    if (next === offset) return key;
    at = next;
  }
}
