import type { Schemas } from '../../../client/client.ts';

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

const isIdle = ({ id, values, isDeleted }: StagedRow) =>
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

/**
 * Decides a conflict: with `mine` the change applies to the row as it is now, with `theirs` it is dropped.
 */
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

/** What a staged change does to its row; null without one. */
export function stateOf(staged: StagedRow | undefined) {
  if (!staged) return null;
  if (staged.theirs !== undefined) return 'conflict';
  if (staged.id === null) return 'new';
  return staged.isDeleted ? 'deleted' : 'changed';
}
export const STATE_NAMES = { conflict: 'Conflict', new: 'New', deleted: 'Deleted', changed: 'Changed' };

export const countOf = (staged: Staged): number => Object.keys(staged).length;

/** A row as it is after a transaction; null if it was deleted. */
export type Saved = Schemas['ChangedRows']['changes'][number];

/** The rows after a transaction, by the keys of the staged changes. */
export type SavedRows = ReadonlyMap<string, Saved>;

type IdOf = (row: Row) => Value[];

/** The values of a row that were changed since it was sent, also those that a person took back. */
function valuesSince(sent: StagedRow, now: StagedRow | undefined, saved: Row): Row {
  const before = Object.entries(sent.original).filter(([name]) => Object.hasOwn(sent.values, name));
  const wanted = { ...Object.fromEntries(before), ...now?.values };
  const isSaved = (name: string, value: Value) =>
    isSame(value, sent.values[name]) || isSame(value, saved[name]);
  return Object.fromEntries(Object.entries(wanted).filter(([name, value]) => !isSaved(name, value)));
}

/**
 * What stays staged after a save: the rows that it did not contain, and what a person changed while it ran.
 * @param sent the staged changes as they were when the save began; a row that was changed since is another
 *   object
 */
export function stagedAfter(now: Staged, sent: Staged, saved: SavedRows, idOf: IdOf): Staged {
  const others = Object.entries(now).filter(([key]) => !saved.has(key));
  const changedSince = [...saved].flatMap(([key, change]): [string, StagedRow][] => {
    const before = sent[key];
    const row = now[key];
    // A new row that was dropped is saved all the same, and no change is left.
    if (!change.row || !before || row === before || (!row && before.id === null)) return [];
    // Its key may have changed, and a new row has one now.
    const id = idOf(change.row);
    // A value of which only the beginning is known cannot be compared with a later one.
    const whole = Object.entries(change.row).filter(([name]) => !change.truncated.includes(name));
    const original = Object.fromEntries(whole);
    const values = valuesSince(before, row, original);
    const left = { id, original, values, isDeleted: row?.isDeleted ?? false };
    return isIdle(left) ? [] : [[keyOf(id), left]];
  });
  return Object.fromEntries([...others, ...changedSince]);
}

/** Adds the rows as somebody else changed them to the staged changes as they are now. */
export function withConflicts(now: Staged, conflicts: ReadonlyMap<string, Row | null>): Staged {
  return Object.fromEntries(
    Object.entries(now).map(([key, row]) => {
      const theirs = conflicts.get(key);
      return [key, theirs === undefined ? row : { ...row, theirs }];
    }),
  );
}

/** A page that was read before a save, with its rows as they are now. */
export function pageAfter(page: Schemas['RowPage'], saved: SavedRows, idOf: IdOf): Schemas['RowPage'] {
  const changes = page.rows.map((row) => saved.get(keyOf(idOf(row))));
  return {
    ...page,
    rows: page.rows.map((row, index) => (changes[index]?.row ? { ...row, ...changes[index].row } : row)),
    truncated: [
      ...page.truncated.filter(({ row }) => !changes[row]?.row),
      ...changes.flatMap((change, row) => change?.truncated.map((column) => ({ row, column })) ?? []),
    ],
  };
}
