import { BOUNDS } from '../../shared/protocol/bounds.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { RowChange } from '../../shared/protocol/tables.ts';
import type { Host } from '../host.ts';
import { admitTenantCode, inBranch } from '../rows/branch-session.ts';
import { type ChangedRow, changeRow } from '../rows/change-row.ts';
import { describeTable, type TableDescription } from '../rows/describe-table.ts';
import { keyOperators } from '../rows/key-operators.ts';
import { CUTS, REST_BYTES, TOO_MANY_COLUMNS } from '../rows/read-page.ts';
import { HostError, within } from '../servers/host-error.ts';

type Result = MethodResult<'row.change'>;

/** Bytes of JSON that a cell takes at most when it is cut as short as cells are: each character can be escaped. */
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
 * Makes all changes in one transaction, in their order. If rows have other values than expected, or do not exist,
 * nothing is changed, and the result lists all of them.
 * @throws HostError TABLE_NOT_FOUND, KEY_NOT_UNIQUE, COLUMN_NOT_FOUND, INVALID_CALL, STATEMENT_REFUSED, TIME_LIMIT_REACHED
 */
export async function changeRows(host: Host, params: Params<'row.change'>): Promise<Result> {
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
        changes.map((change) => descriptionOf(described, change)),
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

const hasConflict = (outcomes: Result['outcomes']) => outcomes.some(({ conflict }) => conflict !== null);

/** Shares the message among the rows by the number of their columns. @throws HostError STATEMENT_REFUSED */
function budgets(tables: readonly TableDescription[], ofChanges: readonly TableDescription[]) {
  const names = Buffer.byteLength(JSON.stringify(tables.map(tableOf)));
  const cells = ofChanges.reduce((sum, { columns }) => sum + columns.length + 1, 0);
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
