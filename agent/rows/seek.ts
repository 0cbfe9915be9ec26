import { identifier, type Session } from '../postgres/connect.ts';
import { fromTable, type Key, type TableDescription } from './describe-table.ts';
import type { KeyOperators } from './key-operators.ts';
import { type KeyValues, type PageMarks, stepFor } from './page-marks.ts';

/** A table whose rows are found by their key. */
export interface OrderedTable {
  /** Its name in the marks. */
  name: string;
  description: TableDescription;
  from: string;
  key: Key;
}

/** @returns null for a table without a primary key */
export function orderedTable(
  description: TableDescription,
  reference: { branch_id: string; schema: string; table: string },
): OrderedTable | null {
  const key = description.keys.find(({ is_primary }) => is_primary);
  if (!key) return null;
  return {
    name: `${reference.branch_id}/${description.oid}`,
    description,
    from: fromTable(description, reference),
    key,
  };
}

/** SQL of the columns that order the rows. */
export const keyOrder = ({ key }: OrderedTable) => key.columns.map(({ name }) => identifier(name)).join(', ');

/** A table whose pages can begin at a mark. */
export interface SeekableTable extends OrderedTable {
  /** The operator that compares rows with a mark. */
  atLeast: string;
}

/** Rows are compared by one operator, but a key over several types can have one for each: then there is no result. */
export function seekable(table: OrderedTable, operators: KeyOperators): SeekableTable | null {
  const ofKey = table.key.columns.map((column) => operators.get(column.operator_class)?.at_least);
  const [atLeast, ...others] = new Set(ofKey);
  return atLeast && others.length === 0 ? { ...table, atLeast } : null;
}

/** SQL condition of the rows at or after a mark, whose values are the parameters from $1 on. */
export function fromMark({ key, description, atLeast }: SeekableTable): string {
  const types = key.columns.map(
    ({ name }) => description.columns.find((column) => column.name === name)?.base_type,
  );
  const values = types.map((type, index) => `$${index + 1}::${type}`);
  // Operators for all enums, for instance, do not accept a domain over one.
  const names = key.columns.map(({ name }, index) => `${identifier(name)}::${types[index]}`);
  if (names.length === 1) return `${names} ${atLeast} ${values}`;
  return `ROW(${names.join(', ')}) ${atLeast} ROW(${values.join(', ')})`;
}

/**
 * Finds the key of the row at `offset` by reading the index from the nearest mark on, and records marks on the way.
 * The first jump deep into a table therefore reads the index from its start; later ones begin near their page.
 * @returns the key's values; `beyond` when the table has fewer rows
 */
export async function seek(
  marks: PageMarks,
  session: Session,
  table: SeekableTable,
  offset: number,
): Promise<KeyValues | 'beyond'> {
  const { state, likely_rows } = table.description;
  const mark = marks.before(table.name, state, offset);
  if (mark?.offset === offset) return mark.key;
  await session.query(
    `DECLARE seek NO SCROLL CURSOR FOR
     SELECT ${keyOrder(table)} FROM ${table.from} ${mark ? `WHERE ${fromMark(table)}` : ''} ORDER BY ${keyOrder(table)}`,
    mark?.key ?? [],
  );
  const step = stepFor(likely_rows);
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
    if (next > 0 && next % step === 0) marks.record(table.name, state, next, key);
    if (next === offset) return key;
    at = next;
  }
}
