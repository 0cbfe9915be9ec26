/** A value as the API sends it; everything but numbers and booleans is PostgreSQL's own text. */
export type Value = string | number | boolean | null;
export type Row = Readonly<Record<string, Value>>;

/** What a person has changed in one row and not saved yet. */
export interface StagedRow {
  /** Values of the key, in its order; null for a new row. */
  id: Value[] | null;
  /** The row as it was read, without values that were cut; empty for a new one. */
  original: Row;
  /** New values by column. */
  values: Row;
  isDeleted: boolean;
  /** The row as somebody else changed it in the meantime; null if it is gone. */
  theirs?: Row | null;
}

/** By the JSON of the key; new rows by a name of their own. */
export type Staged = Readonly<Record<string, StagedRow>>;

export const keyOf = (id: readonly Value[]): string => JSON.stringify(id);

const without = <T>(record: Readonly<Record<string, T>>, name: string): Record<string, T> =>
  Object.fromEntries(Object.entries(record).filter(([key]) => key !== name));

/** Whether two values are the same for PostgreSQL's input: `7` and `"7"` are. */
export const isSame = (one: Value | undefined, other: Value | undefined): boolean =>
  one == null || other == null ? one === other : String(one) === String(other);

export const isIdle = ({ id, values, isDeleted }: StagedRow) =>
  id !== null && !isDeleted && Object.keys(values).length === 0;

function put(staged: Staged, key: string, row: StagedRow): Staged {
  return isIdle(row) ? without(staged, key) : { ...staged, [key]: row };
}

/** Stages the new value of a cell; its old value ends the change. */
export function withValue(
  staged: Staged,
  target: { key: string; id: Value[] | null; original: Row },
  column: string,
  value: Value,
): Staged {
  const row = staged[target.key] ?? {
    id: target.id,
    original: target.original,
    values: {},
    isDeleted: false,
  };
  const isBack = row.id !== null && isSame(value, row.original[column]);
  const values = isBack ? without(row.values, column) : { ...row.values, [column]: value };
  return put(staged, target.key, { ...row, values });
}

/** A new row takes its default again where it has no value. */
export function withoutValue(staged: Staged, key: string, column: string): Staged {
  const row = staged[key];
  return row ? put(staged, key, { ...row, values: without(row.values, column) }) : staged;
}

/** Marks a row for deletion, or no longer. A new row disappears. */
export function withDeletion(
  staged: Staged,
  target: { key: string; id: Value[] | null; original: Row },
): Staged {
  if (target.id === null) return without(staged, target.key);
  const row = staged[target.key] ?? {
    id: target.id,
    original: target.original,
    values: {},
    isDeleted: false,
  };
  return put(staged, target.key, { ...row, isDeleted: !row.isDeleted });
}

export const withNewRow = (staged: Staged, key: string): Staged => ({
  ...staged,
  [key]: { id: null, original: {}, values: {}, isDeleted: false },
});

export const discard = (staged: Staged, key: string): Staged => without(staged, key);

/** Decides a conflict: with `mine` the change applies to the row as it is now, with `theirs` it is dropped. */
export function decide(staged: Staged, key: string, choice: 'mine' | 'theirs'): Staged {
  const row = staged[key];
  if (row?.theirs === undefined) return staged;
  if (choice === 'theirs' || row.theirs === null) return without(staged, key);
  const { theirs, ...rest } = row;
  const values = Object.fromEntries(
    Object.entries(row.values).filter(([name, value]) => !isSame(value, theirs[name])),
  );
  return put(staged, key, { ...rest, original: theirs, values });
}

export const countOf = (staged: Staged): number => Object.keys(staged).length;
