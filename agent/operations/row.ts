import { BOUNDS } from '../../shared/protocol/bounds.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { RowChange } from '../../shared/protocol/tables.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { HostError, within } from '../process/host-error.ts';
import {
  ADMIT_TENANT_CODE,
  admitTenantCode,
  inBranch,
  type RowsHost,
  type Transaction,
} from '../rows/branch-session.ts';
import { cellsOf } from '../rows/cells.ts';
import { type ChangedRow, changeRow } from '../rows/change-row.ts';
import {
  confirmTable,
  describeTable,
  fromTable,
  type KnownTable,
  keyOperators,
  knownTable,
  readTableState,
  type TableDescription,
  wireColumn,
} from '../rows/describe-table.ts';
import {
  CUTS,
  fromMark,
  keyOrder,
  orderedTable,
  REST_BYTES,
  readPage,
  readWholePage,
  STEP_LEAST,
  seek,
  seekable,
  TOO_MANY_COLUMNS,
} from '../rows/pages.ts';
import { comparedColumns, comparisonsOf, filterOf, orderBy } from '../rows/row-filter.ts';

type Page = MethodResult<'row.list'>;

/** A table in a transaction that reads a page of it. */
interface Reading extends Pick<Transaction, 'commit'> {
  session: Session;
  description: TableDescription;
  /** Sends what admits the tenant's code. */
  admit: () => Promise<unknown>;
  /** `readPage`, or another way to read it. */
  read: typeof readWholePage;
}

/**
 * A page of the rows that meet all conditions, in the requested order and then that of the primary key;
 * without both, in the order in which the server reads them.
 * @throws HostError TABLE_NOT_FOUND, COLUMN_NOT_FOUND, INVALID_CALL, STATEMENT_REFUSED, TIME_LIMIT_REACHED,
 *   HOST_BUSY
 */
export async function listRows(host: RowsHost, params: Params<'row.list'>): Promise<Page> {
  const page = await inBranch(host, params, 'read', async (session, { commit }) => {
    const known = knownTable(session, params);
    if (known && !known.isLarge && !asksCatalog(params))
      return readKnown(host, params, { session, known, commit });
    return readDescribed(host, params, { session, commit, read: known?.isLarge ? readPage : readWholePage });
  });
  if (page) return page;
  // Read again with all precautions, a page always fits.
  return (await inBranch(host, params, 'read', (session, { commit }) =>
    readDescribed(host, params, { session, commit, read: readPage }),
  )) as Page;
}

async function readDescribed(
  host: RowsHost,
  params: Params<'row.list'>,
  { session, commit, read }: Pick<Reading, 'session' | 'commit' | 'read'>,
): Promise<Page | null> {
  const description = await describeTable(session, params);
  const page = await readRows(host, params, {
    session,
    commit,
    read,
    description,
    admit: () => admitTenantCode(session),
  });
  const known = knownTable(session, params);
  if (known && page === null) known.isLarge = true;
  return page;
}

/**
 * A page of a table that the session knows, in one trip: PostgreSQL confirms first that the table is still the same.
 * Otherwise the page does not count, whether it has failed or not.
 * @returns null if it does not count, or does not fit into a message as it is
 */
async function readKnown(
  host: RowsHost,
  params: Params<'row.list'>,
  { session, commit, known }: Pick<Reading, 'session' | 'commit'> & { known: KnownTable },
): Promise<Page | null> {
  const confirmed = confirmTable(session, params, known, ADMIT_TENANT_CODE);
  const { description } = known;
  const reading = { session, commit, description, admit: () => confirmed, read: readWholePage };
  const [page, present] = await Promise.allSettled([readRows(host, params, reading), confirmed]);
  if (present.status === 'rejected') throw present.reason;
  if (present.value === null) return null;
  if (page.status === 'rejected') throw page.reason;
  known.isLarge = page.value === null;
  return page.value && { ...page.value, estimated_rows: present.value.estimated_rows };
}

/** Whether the page needs more of the catalog than the description. */
const asksCatalog = ({ offset, filter }: Params<'row.list'>) => offset >= STEP_LEAST || filter.length > 0;

async function readRows(
  host: RowsHost,
  params: Params<'row.list'>,
  { session, description, admit, read, commit }: Reading,
): Promise<Page | null> {
  const { limit, offset, filter, order } = params;
  const table = orderedTable(description, params);
  // The marks are about all rows in the order of the key, and none is before `STEP_LEAST`.
  const hasMarks = table && offset >= STEP_LEAST && filter.length === 0 && order.length === 0;
  const marked = hasMarks
    ? seekable(
        table,
        ...(await Promise.all([keyOperators(session, [description]), readTableState(session, description)])),
      )
    : null;
  const comparisons = await comparisonsOf(session, comparedColumns(description, filter));
  const { columns, estimated_rows } = description;
  const header = { columns: columns.map(wireColumn), estimated_rows };
  const [, begin] = marked
    ? await Promise.all([admit(), seek(host.rows.marks, session, marked, offset)])
    : [];
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
  // One trip.
  const [, found] = await Promise.all([
    admit(),
    read(session, columns, page, begin ?? values, limit),
    commit(),
  ]);
  if (!found) return null;
  return { ...header, rows: found.rows, has_more: found.hasMore };
}

type Result = MethodResult<'row.change'>;

/**
 * Bytes of JSON that a cell takes at most when it is cut as short as cells are: each character can be
 * escaped.
 */
const SHORTEST_CELL_BYTES = Number(CUTS.at(-1)) * 6 + 16;

/** Ends the transaction without a change. */
class Conflicts extends Error {
  readonly result: Result;

  constructor(result: Result) {
    super('rows have other values than expected');
    this.result = result;
  }
}

/**
 * Makes all changes in one transaction, in their order. If rows have other values than expected, or do not
 * exist although they must, nothing is changed, and the result lists all of them.
 * @throws HostError TABLE_NOT_FOUND, KEY_NOT_UNIQUE, COLUMN_NOT_FOUND, INVALID_CALL, STATEMENT_REFUSED,
 *   TIME_LIMIT_REACHED, HOST_BUSY
 */
export async function changeRows(host: RowsHost, params: Params<'row.change'>): Promise<Result> {
  const { changes } = params;
  try {
    return await inBranch(host, params, 'change', async (session) => {
      const names = new Map(changes.map((change) => [nameOf(change), change]));
      const described = new Map<string, TableDescription>();
      for (const [name, change] of names) described.set(name, await describeTable(session, change));
      const found = [...described.values()];
      const operators = await keyOperators(session, found);
      await admitTenantCode(session);
      const budget = budgets(
        found,
        changes.filter(returnsRow).map((change) => descriptionOf(described, change)),
      );
      const outcomes: Result['outcomes'] = [];
      const record = (at: number, change: RowChange, changed: ChangedRow) =>
        outcomes.push({ change: at, table: [...described.keys()].indexOf(nameOf(change)), ...changed });
      const result = () => {
        const conflicts = outcomes.filter(({ conflict }) => conflict !== null);
        return { tables: found.map(tableOf), outcomes: conflicts.length > 0 ? conflicts : outcomes };
      };
      for (const [at, change] of changes.entries()) {
        const description = descriptionOf(described, change);
        const target = { session, description, operators, reference: change, budget: budget(description) };
        try {
          record(at, change, await changeRow(target, change));
        } catch (error) {
          // It may have failed because of an earlier conflict.
          if (hasConflict(outcomes)) throw new Conflicts(result());
          throw ofChange(error, at);
        }
      }
      if (hasConflict(outcomes)) throw new Conflicts(result());
      return result();
    });
  } catch (error) {
    if (error instanceof Conflicts) return error.result;
    throw error;
  }
}

const nameOf = ({ schema, table }: RowChange) => JSON.stringify([schema, table]);

function descriptionOf(
  described: ReadonlyMap<string, TableDescription>,
  change: RowChange,
): TableDescription {
  const description = described.get(nameOf(change));
  if (!description) throw new Error('a change of a table that was not described');
  return description;
}

const tableOf = ({ columns, keys }: TableDescription) => ({
  columns: columns.map(({ name }) => name),
  key: (keys[0]?.columns ?? []).map(({ name }) => name),
});

const returnsRow = (change: RowChange) => change.action !== 'delete' || change.must_exist;

const hasConflict = (outcomes: Result['outcomes']) => outcomes.some(({ conflict }) => conflict !== null);

/**
 * Shares the message among the rows by the number of their columns.
 * @param ofRows the table of each row that may be returned
 * @throws HostError STATEMENT_REFUSED
 */
function budgets(tables: readonly TableDescription[], ofRows: readonly TableDescription[]) {
  const names = Buffer.byteLength(JSON.stringify(tables.map(tableOf)));
  const cells = ofRows.reduce((sum, { columns }) => sum + columns.length + 1, 0);
  const perCell = Math.floor((BOUNDS.messageBytes - REST_BYTES - names) / cells);
  if (perCell < SHORTEST_CELL_BYTES)
    throw new HostError('STATEMENT_REFUSED', 'too many columns: send fewer changes in one request', {
      sqlstate: TOO_MANY_COLUMNS,
    });
  return ({ columns }: TableDescription) => perCell * columns.length;
}

/** Adds the index of the change to its failure, be it the agent's or PostgreSQL's. */
function ofChange(error: unknown, change: number): unknown {
  const located = error instanceof HostError && error.path ? within(`changes.${change}`, error) : error;
  return located instanceof Error ? Object.assign(located, { change }) : located;
}
