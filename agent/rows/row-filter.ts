import type { RowFilter, RowOrder, Scalar } from '../../shared/protocol/tables.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { HostError, ofParameter } from '../process/host-error.ts';
import { inputOf, parameterOf, textOf } from './cells.ts';
import { columnOf, type TableColumn, type TableDescription } from './describe-table.ts';

/** Strategies of a B-tree's operators. `ne` is the negation of `eq`. */
const STRATEGIES = { lt: 1, le: 2, eq: 3, ge: 4, gt: 5 } as const;
type Comparison = keyof typeof STRATEGIES;

/** By the oid of a type, the operators of its default B-tree operator class. */
export type Comparisons = ReadonlyMap<string, Record<Comparison, string>>;

/** The types that stand for all arrays, enums, ranges, multiranges and composites. */
const POLYMORPHIC = `CASE WHEN wanted.typcategory = 'A' THEN 'anyarray'
  ELSE CASE wanted.typtype WHEN 'e' THEN 'anyenum' WHEN 'r' THEN 'anyrange' WHEN 'm' THEN 'anymultirange'
       WHEN 'c' THEN 'record' END END::regtype::oid`;

/**
 * Finds the operators that compare values of these types, as an index would. By name, a tenant's own operator
 * could be found instead. To be called before any code of the tenant runs in the session.
 */
export async function comparisonsOf(session: Session, columns: readonly TableColumn[]): Promise<Comparisons> {
  if (columns.length === 0) return new Map();
  const { rows } = await session.query<{ type: string; operators: string }>(
    `SELECT wanted.oid::text AS type, (
       SELECT json_object_agg(amopstrategy, format('OPERATOR(%I.%s)', nspname, oprname))
       FROM pg_amop JOIN pg_operator ON pg_operator.oid = amopopr JOIN pg_namespace ON pg_namespace.oid = oprnamespace
       WHERE amopfamily = opcfamily AND amoplefttype = opcintype AND amoprighttype = opcintype AND amoppurpose = 's'
     ) AS operators
     FROM pg_type AS wanted, LATERAL (
       SELECT opcfamily, opcintype FROM pg_opclass JOIN pg_type AS input ON input.oid = opcintype
       WHERE opcmethod = (SELECT oid FROM pg_am WHERE amname = 'btree') AND opcdefault
         AND (opcintype IN (wanted.oid, ${POLYMORPHIC}) OR EXISTS
           (SELECT FROM pg_cast WHERE castsource = wanted.oid AND casttarget = opcintype AND castmethod = 'b'))
       ORDER BY opcintype = wanted.oid DESC, input.typispreferred DESC, opcintype LIMIT 1) AS found
     WHERE wanted.oid = ANY ($1::oid[])`,
    [columns.map(({ base_oid }) => base_oid)],
  );
  const byStrategy = (text: string) => JSON.parse(text) as Record<string, string>;
  return new Map(
    rows.map(({ type, operators }) => {
      const found = byStrategy(operators);
      const named = Object.entries(STRATEGIES).map(([name, strategy]) => [name, found[strategy] ?? '']);
      return [type, Object.fromEntries(named) as Record<Comparison, string>];
    }),
  );
}

/** The columns whose values a filter compares. @throws HostError COLUMN_NOT_FOUND */
export const comparedColumns = (table: TableDescription, filter: readonly RowFilter[]): TableColumn[] =>
  filter.flatMap(({ column, value }, at) =>
    value === undefined ? [] : ofParameter(`filter.${at}.column`, () => columnOf(table, column)),
  );

/**
 * SQL conditions on the table `t`, with their values as parameters from $1 on.
 * @throws HostError COLUMN_NOT_FOUND, INVALID_CALL for a type without this comparison, or a missing value
 */
export function filterOf(table: TableDescription, filter: readonly RowFilter[], comparisons: Comparisons) {
  const values: (string | null)[] = [];
  const conditions = filter.map((one, at) => ofParameter(`filter.${at}`, () => condition(one)));
  return { conditions, values };

  function condition({ column: name, operator, value }: RowFilter): string {
    const column = ofParameter('column', () => columnOf(table, name));
    const cell = `t.${identifier(name)}`;
    if (operator === 'is_null' || operator === 'is_not_null') {
      if (value !== undefined)
        throw new HostError('INVALID_CALL', `${operator} takes no value`, { path: 'value' });
      // Not IS NULL, which is also true of a composite value of nulls.
      return `${cell} IS ${operator === 'is_null' ? 'NOT' : ''} DISTINCT FROM NULL`;
    }
    if (value === undefined)
      throw new HostError('INVALID_CALL', `${operator} takes a value`, { path: 'value' });
    if (operator === 'contains') return containing(column, cell, values.push(String(value)));
    return comparing(column, cell, operator, value);
  }

  function comparing(column: TableColumn, cell: string, operator: Comparison | 'ne', value: Scalar): string {
    const operators = comparisons.get(column.base_oid);
    if (!operators)
      throw new HostError('INVALID_CALL', `values of type ${column.type} cannot be compared`, {
        path: 'column',
      });
    const number = values.push(ofParameter('value', () => inputOf(column, value)));
    // Operators for all enums, for instance, do not accept a domain over one.
    const sql = `${cell}::${column.base_type} ${operators[operator === 'ne' ? 'eq' : operator]} ${parameterOf(column, number, column.base_type)}`;
    return operator === 'ne' ? `NOT (${sql})` : sql;
  }
}

/** With the database's own collation, because the column's may be unable to search. */
function containing(column: TableColumn, cell: string, number: number): string {
  const lower = (text: string) => `pg_catalog.lower((${text}) COLLATE pg_catalog."default")`;
  return `pg_catalog.strpos(${lower(textOf(column, cell))}, ${lower(`$${number}::pg_catalog.text`)}) OPERATOR(pg_catalog.>) 0`;
}

/** SQL of the order; nulls are last when ascending, as in PostgreSQL. @throws HostError COLUMN_NOT_FOUND */
export const orderBy = (table: TableDescription, order: readonly RowOrder[]): string[] =>
  order.map(({ column, direction }, at) => {
    const { name } = ofParameter(`order.${at}.column`, () => columnOf(table, column));
    return `t.${identifier(name)} ${direction.toUpperCase()}`;
  });
