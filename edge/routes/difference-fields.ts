import { z } from 'zod';
import {
  DIFFERENCE_METHODS,
  RowDifference,
  SchemaDifference,
} from '../../shared/protocol/difference-operations.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import { type Cell, Column } from '../../shared/protocol/tables.ts';
import type { OtherSide } from '../branches/comparison.ts';
import { namedRow, Values } from './row-fields.ts';

const Method = z.enum(DIFFERENCE_METHODS).meta({
  description:
    'How the rows that can differ were found. `wal_summary`: the blocks that were written since the two separated. `extents`: the blocks that no longer share their place on the disk. `full`: all rows were compared.',
});

const Against = z
  .strictObject({
    kind: z.enum(['branch', 'snapshot']),
    id: z.uuid(),
    name: z.string().nullable().meta({ example: 'main' }),
  })
  .meta({ id: 'DifferenceAgainst' });

/** The differences of a branch, seen from the other side. */
export const Difference = z
  .strictObject({
    against: Against,
    method: Method.nullable(),
    rows: RowDifference.nullable().meta({ description: 'Null if `rows` is false.' }),
    schema: SchemaDifference.nullable().meta({ description: 'Null unless `schema` is true.' }),
  })
  .meta({ id: 'Difference' });

export const ChangedRows = z
  .strictObject({
    against: Against,
    method: Method,
    schema: z.string(),
    table: z.string(),
    primary_key: z.array(z.string()).meta({ description: 'The columns by which rows are matched.' }),
    columns: z.strictObject({ before: z.array(Column), after: z.array(Column) }),
    rows: z.array(
      z.strictObject({
        change: z.enum(['inserted', 'updated', 'deleted']),
        before: Values.nullable().meta({ description: 'Null for an inserted row.' }),
        after: Values.nullable().meta({ description: 'Null for a deleted row.' }),
      }),
    ),
    truncated: z
      .array(z.strictObject({ row: z.int(), side: z.enum(['before', 'after']), column: z.string() }))
      .meta({ description: 'Cells whose value was cut. `row` is an index in `rows`.' }),
    next_cursor: z.string().nullable(),
  })
  .meta({ id: 'RowDifferencePage' });

export const toAgainst = ({ branch, snapshot }: OtherSide): z.output<typeof Against> =>
  branch
    ? { kind: 'branch', id: branch.id, name: branch.branchName }
    : { kind: 'snapshot', id: snapshot.id, name: snapshot.name };

export const toDifference = (
  other: OtherSide,
  { method, rows, schema }: MethodResult<'branch.diff'>,
): z.output<typeof Difference> => ({ against: toAgainst(other), method, rows, schema });

const CHANGES = { 'false,true': 'inserted', 'true,true': 'updated', 'true,false': 'deleted' } as const;

/** The rows of a page for clients, and their cells whose value was cut. */
export function namedChanges({ columns_before, columns_after, rows }: MethodResult<'row.diff'>) {
  const truncated: z.output<typeof ChangedRows>['truncated'] = [];
  const names = { before: columns_before, after: columns_after };
  const sideOf = (row: number, side: 'before' | 'after', cells: Cell[] | null) => {
    if (!cells) return null;
    const named = namedRow(
      names[side].map(({ name }) => name),
      cells,
    );
    truncated.push(...named.truncated.map((column) => ({ row, side, column })));
    return named.row;
  };
  const named = rows.map(({ before, after }, row) => ({
    change: CHANGES[`${before !== null},${after !== null}` as keyof typeof CHANGES],
    before: sideOf(row, 'before', before),
    after: sideOf(row, 'after', after),
  }));
  return { rows: named, truncated };
}
