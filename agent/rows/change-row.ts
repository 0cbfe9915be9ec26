import type { Cell, RowChange, RowId, RowOutcome, Scalar } from '../../shared/protocol/tables.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { HostError, ofParameter } from '../process/host-error.ts';
import { cellsOf, inputOf, parameterOf, textOf } from './cells.ts';
import { columnOf, fromTable, type KeyOperators, type TableDescription } from './describe-table.ts';
import { readPage } from './pages.ts';

const notUnique = () =>
  new HostError('KEY_NOT_UNIQUE', "these columns are not the table's key", { path: 'primary_key' });

/**
 * SQL condition that is true for one row of the table `t`, with the values of its key as parameters from $1
 * on.
 * @param named columns of the key
 * @throws HostError KEY_NOT_UNIQUE
 */
function rowCondition(table: TableDescription, operators: KeyOperators, named: readonly string[]) {
  const key = table.keys.find(
    ({ columns }) => columns.length === named.length && columns.every(({ name }) => named.includes(name)),
  );
  if (!key) throw notUnique();
  const columns = named.map((name) => columnOf(table, name));
  const conditions = columns.map((column, index) => {
    const part = key.columns.find(({ name }) => name === column.name);
    const equal = operators.get(part?.operator_class ?? '')?.equal;
    // Its extension was dropped after the table was described, and the index with it.
    if (!equal) throw notUnique();
    // Operators for all enums, for instance, do not accept a domain over one.
    return `t.${identifier(column.name)}::${column.base_type} ${equal} ${parameterOf(column, index + 1, column.base_type)}`;
  });
  return {
    isRow: conditions.join(' AND '),
    /**
     * @param path of the id in the call
     * @throws HostError INVALID_CALL
     */
    parameters(id: RowId, path: string): (string | null)[] {
      if (id.length !== columns.length)
        throw new HostError('INVALID_CALL', 'an id has one value for each column of the key', { path });
      return ofParameter(path, () => columns.map((column, index) => inputOf(column, id[index] as Scalar)));
    },
  };
}

export type ChangedRow = Omit<RowOutcome, 'table'>;

const made = (row: Cell[] | null): ChangedRow => ({ row, conflict: null, skipped: false });
const MISSING: ChangedRow = { row: null, conflict: 'missing', skipped: false };
const SKIPPED: ChangedRow = { row: null, conflict: null, skipped: true };

/** The session and the table of a change. */
export interface ChangeTarget {
  session: Session;
  description: TableDescription;
  operators: KeyOperators;
  reference: { schema: string; table: string };
  /** Bytes of JSON for the row. */
  budget: number;
}

type Values = { column: string; value: Scalar | null }[];
interface ExistingRow {
  primary_key: readonly string[];
  id: RowId;
  expected: Values;
}

/** SQLSTATE `triggered_action_exception`. */
const TRIGGERED_ACTION = '09000';

const leftAsItIs = () =>
  new HostError('STATEMENT_REFUSED', 'a trigger or a policy of the table left the row as it is', {
    sqlstate: TRIGGERED_ACTION,
  });

/**
 * The row that a statement returns.
 * @param statement with `RETURNING` or a list of results that `readPage` reads
 */
async function rowOf(
  { session, description, budget }: ChangeTarget,
  statement: string,
  values: (string | null)[],
): Promise<Cell[] | undefined> {
  const { rows } = await readPage(session, description.columns, statement, values, 1, budget);
  return rows[0];
}

const cells = ({ columns }: TableDescription) => `1::pg_catalog.int8, ${cellsOf(columns, 't')}`;

/** The column of a given value, and the text sent for it. @param path of the value in the change */
function cellGiven({ description }: ChangeTarget, path: string, { column: name, value }: Values[number]) {
  const column = ofParameter(`${path}.column`, () => columnOf(description, name));
  return { column, input: ofParameter(`${path}.value`, () => inputOf(column, value)) };
}

/**
 * Inserts a row; columns without a value get their default.
 * @throws HostError COLUMN_NOT_FOUND, STATEMENT_REFUSED
 */
async function insertRow(target: ChangeTarget, given: Values): Promise<ChangedRow> {
  const { description, reference } = target;
  const cellsGiven = given.map((cell, at) => cellGiven(target, `values.${at}`, cell));
  const columns = cellsGiven.map(({ column }) => column);
  const parameters = cellsGiven.map(({ input }) => input);
  const values = columns.map((column, at) => parameterOf(column, at + 1)).join(', ');
  const named = columns.map(({ name }) => identifier(name)).join(', ');
  const row = await rowOf(
    target,
    `INSERT INTO ${identifier(reference.schema)}.${identifier(reference.table)} AS t
     ${columns.length > 0 ? `(${named}) VALUES (${values})` : 'DEFAULT VALUES'} RETURNING ${cells(description)}`,
    parameters,
  );
  if (!row) throw leftAsItIs();
  return made(row);
}

/** SQL conditions for a row that has the expected values, with its parameters from $1 on. */
function conditionsOf(target: ChangeTarget, { primary_key, id, expected }: ExistingRow) {
  const { isRow, parameters } = rowCondition(target.description, target.operators, primary_key);
  const key = parameters(id, 'id');
  const values = [...key];
  // Compares the text of the whole value: two values are equal only if clients see them as equal.
  const isExpected = expected.map((cell, at) => {
    const { column, input } = cellGiven(target, `expected.${at}`, cell);
    const number = values.push(input);
    return `(${textOf(column, `t.${identifier(column.name)}`)}) COLLATE pg_catalog."C" IS NOT DISTINCT FROM
      (${textOf(column, parameterOf(column, number, column.base_type))}) COLLATE pg_catalog."C"`;
  });
  return { isRow, key, isExpected: isExpected.length > 0 ? isExpected.join(' AND ') : 'true', values };
}

/**
 * Changes cells of one row.
 * @throws HostError COLUMN_NOT_FOUND, KEY_NOT_UNIQUE, INVALID_CALL, STATEMENT_REFUSED
 */
async function updateRow(
  target: ChangeTarget,
  change: ExistingRow & { values: Values },
): Promise<ChangedRow> {
  const { description, reference } = target;
  const { isRow, isExpected, values } = conditionsOf(target, change);
  const parameters = [...values];
  const assignments = change.values.map((cell, at) => {
    const { column, input } = cellGiven(target, `values.${at}`, cell);
    return `${identifier(column.name)} = ${parameterOf(column, parameters.push(input))}`;
  });
  const row = await rowOf(
    target,
    `UPDATE ${fromTable(description, reference)} AS t SET ${assignments.join(', ')}
     WHERE ${isRow} AND ${isExpected} RETURNING ${cells(description)}`,
    parameters,
  );
  return row ? made(row) : conflictOf(target, change);
}

/** Deletes one row. @throws HostError COLUMN_NOT_FOUND, KEY_NOT_UNIQUE, INVALID_CALL, STATEMENT_REFUSED */
async function deleteRow(
  target: ChangeTarget,
  change: ExistingRow & { must_exist: boolean },
): Promise<ChangedRow> {
  const { session, description, reference } = target;
  const { isRow, isExpected, values } = conditionsOf(target, change);
  const { rowCount } = await session.query(
    `DELETE FROM ${fromTable(description, reference)} AS t WHERE ${isRow} AND ${isExpected}`,
    values,
  );
  if (rowCount === 1) return made(null);
  return change.must_exist ? conflictOf(target, change) : SKIPPED;
}

/** @throws HostError STATEMENT_REFUSED if the row is as expected, so that a trigger or a policy kept it */
async function conflictOf(target: ChangeTarget, change: ExistingRow): Promise<ChangedRow> {
  const { session, description, reference } = target;
  const { isRow, isExpected, key, values } = conditionsOf(target, change);
  const from = `FROM ${fromTable(description, reference)} AS t WHERE ${isRow}`;
  const { rows } = await session.query<{ is_expected: string }>(
    `SELECT ${isExpected} AS is_expected ${from}`,
    values,
  );
  if (!rows[0]) return MISSING;
  if (rows[0].is_expected === 't') throw leftAsItIs();
  const row = await rowOf(target, `SELECT ${cells(description)} ${from}`, key);
  return row ? { row, conflict: 'changed', skipped: false } : MISSING;
}

/** Makes one change of a client. */
export function changeRow(target: ChangeTarget, change: RowChange): Promise<ChangedRow> {
  switch (change.action) {
    case 'insert':
      return insertRow(target, change.values);
    case 'update':
      return updateRow(target, change);
    case 'delete':
      return deleteRow(target, change);
  }
}
