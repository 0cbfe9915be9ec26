import type { Schemas } from '../../../client/client.ts';
import { isIdle, isSame, keyOf, type Row, type Staged, type StagedRow, type Value } from './staged.ts';

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
 * @param sent the staged changes as they were when the save began; a row that was changed since is another object
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
