import { isIdle, isSame, keyOf, type Row, type Staged, type StagedRow, type Value } from './staged.ts';

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
 * @param saved the rows as they are now, by the keys of the staged changes; null for a deleted one
 */
export function stagedAfter(
  now: Staged,
  sent: Staged,
  saved: ReadonlyMap<string, Row | null>,
  idOf: (row: Row) => Value[],
): Staged {
  const others = Object.entries(now).filter(([key]) => !saved.has(key));
  const changedSince = [...saved].flatMap(([key, original]): [string, StagedRow][] => {
    const before = sent[key];
    const row = now[key];
    // A new row that was dropped is saved all the same, and no change is left.
    if (!original || !before || row === before || (!row && before.id === null)) return [];
    // Its key may have changed, and a new row has one now.
    const id = idOf(original);
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
