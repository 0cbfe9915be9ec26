/** The key of the row at which a page begins, as PostgreSQL writes its values. */
export type KeyValues = string[];

interface Marks {
  /** The table's `state` when these marks were made. */
  state: string;
  /** Key values by offset. */
  keys: Map<number, KeyValues>;
}

/** All marks together take 32 MiB of memory at most. */
const TABLES_MAX = 128;
const MARKS_PER_TABLE = 256;
const KEY_LENGTH_MAX = 1_024;

/** Skipping fewer rows than this is faster than remembering a mark. */
const STEP_LEAST = 1_000;
const STEP_MOST = 1_000_000;

/** Rows between two marks of a table of this size, so that the whole table needs half of the marks it may have. */
export const stepFor = (estimatedRows: number) =>
  Math.min(Math.max(Math.ceil(estimatedRows / (MARKS_PER_TABLE / 2)), STEP_LEAST), STEP_MOST);

/**
 * Remembers the keys at some offsets of the tables that were browsed last, so that a deep page is found from the mark
 * before it. A mark is valid while the table's `state` is the same: inserted or deleted rows have moved it since.
 */
export class PageMarks {
  /** By table, the most recently used one last. */
  readonly #tables = new Map<string, Marks>();

  /** The nearest mark at or before `offset`. */
  before(table: string, state: string, offset: number): { offset: number; key: KeyValues } | null {
    let nearest: { offset: number; key: KeyValues } | null = null;
    for (const [at, key] of this.#marksOf(table, state).keys) {
      if (at <= offset && at > (nearest?.offset ?? -1)) nearest = { offset: at, key };
    }
    return nearest;
  }

  record(table: string, state: string, offset: number, key: KeyValues): void {
    if (key.join('').length > KEY_LENGTH_MAX) return;
    const { keys } = this.#marksOf(table, state);
    keys.set(offset, key);
    removeOldest(keys, MARKS_PER_TABLE);
  }

  #marksOf(table: string, state: string): Marks {
    const known = this.#tables.get(table);
    const marks = known?.state === state ? known : { state, keys: new Map() };
    this.#tables.delete(table);
    this.#tables.set(table, marks);
    removeOldest(this.#tables, TABLES_MAX);
    return marks;
  }
}

function removeOldest(map: Map<unknown, unknown>, most: number): void {
  const [oldest] = map.keys();
  if (map.size > most) map.delete(oldest);
}
