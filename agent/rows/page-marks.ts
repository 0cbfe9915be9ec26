/** Where a page of a table begins: the values of its key there, as PostgreSQL writes them. */
export type KeyValues = string[];

interface Marks {
  /** What the statistics said of the table when these marks were made. */
  state: string;
  /** Key values by offset. */
  keys: Map<number, KeyValues>;
  /** Whether somebody has set out to lay them all. */
  claimed: boolean;
}

/** All marks together take up 32 MiB at most. */
const TABLES_MAX = 128;
export const MARKS_PER_TABLE = 256;
const KEY_LENGTH_MAX = 1_024;

/** Fewer rows than these are passed over faster than remembered. */
const STEP_LEAST = 1_000;
const STEP_MOST = 1_000_000;

/** How many rows lie between two marks of a table with so many rows: half of what there is place for. */
export const stepFor = (estimatedRows: number) =>
  Math.min(Math.max(Math.ceil(estimatedRows / (MARKS_PER_TABLE / 2)), STEP_LEAST), STEP_MOST);

/**
 * Remembers keys at some offsets of the tables that were browsed last, so that a deep page is found from the
 * mark before it. A mark holds while the table's `state` is the same: rows that came or went since have moved it.
 */
export class PageMarks {
  /** By table, the one used last at the end. */
  readonly #tables = new Map<string, Marks>();

  /** The nearest mark at or before `offset`. */
  before(table: string, state: string, offset: number): { offset: number; key: KeyValues } | null {
    let nearest: { offset: number; key: KeyValues } | null = null;
    for (const [at, key] of this.#marksOf(table, state).keys) {
      if (at <= offset && at > (nearest?.offset ?? -1)) nearest = { offset: at, key };
    }
    return nearest;
  }

  note(table: string, state: string, offset: number, key: KeyValues): void {
    if (key.join('').length > KEY_LENGTH_MAX) return;
    const { keys } = this.#marksOf(table, state);
    keys.set(offset, key);
    forgetOldest(keys, MARKS_PER_TABLE);
  }

  /** Notes that somebody lays the marks of this state, who may get less than all the way: it is done once. */
  claim(table: string, state: string): void {
    this.#marksOf(table, state).claimed = true;
  }

  isClaimed(table: string, state: string): boolean {
    return this.#marksOf(table, state).claimed;
  }

  #marksOf(table: string, state: string): Marks {
    const known = this.#tables.get(table);
    const marks = known?.state === state ? known : { state, keys: new Map(), claimed: false };
    this.#tables.delete(table);
    this.#tables.set(table, marks);
    forgetOldest(this.#tables, TABLES_MAX);
    return marks;
  }
}

function forgetOldest(map: Map<unknown, unknown>, most: number): void {
  const [oldest] = map.keys();
  if (map.size > most) map.delete(oldest);
}
