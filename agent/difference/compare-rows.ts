import type { Session } from '../postgres/connect.ts';
import type { PartOrder } from './row-order.ts';

/** Rows that are fetched at once. */
const FETCHED = 2_000;

/** A row of one side, without its values. */
export interface RowMark {
  ctid: string;
  digest: string;
  key: string[];
}

/** A query of one side, in the order of the key; null if the side has no such table. */
type Query = { session: Session; text: string; values: unknown[] } | null;

/** A difference: without `before` the row was inserted, without `after` it was deleted. */
export interface Difference {
  before: RowMark | null;
  after: RowMark | null;
}

/** The rows of one side, in the order of their keys. */
class Rows {
  readonly #session: Session | null;
  #fetched: RowMark[] = [];
  #at = 0;
  #isOver: boolean;

  private constructor(session: Session | null) {
    this.#session = session;
    this.#isOver = session === null;
  }

  static async open(query: Query): Promise<Rows> {
    if (!query) return new Rows(null);
    const { session, text, values } = query;
    await session.query(`DECLARE compared NO SCROLL CURSOR FOR ${text}`, values);
    return new Rows(session);
  }

  get needsMore(): boolean {
    return !this.#isOver && this.#at >= this.#fetched.length;
  }

  /** @returns the number of rows that were read */
  async fetch(): Promise<number> {
    if (!this.needsMore || !this.#session) return 0;
    const { rows } = await this.#session.query<[string, string, ...string[]]>({
      text: `FETCH ${FETCHED} FROM compared`,
      rowMode: 'array',
    });
    this.#fetched = rows.map(([ctid, digest, ...key]) => ({ ctid, digest, key }));
    this.#at = 0;
    this.#isOver = rows.length < FETCHED;
    return rows.length;
  }

  current(): RowMark | null {
    return this.#fetched[this.#at] ?? null;
  }

  next(): void {
    this.#at += 1;
  }

  async close(): Promise<void> {
    await this.#session?.query('CLOSE compared');
  }
}

/** As PostgreSQL orders them: numbers, or texts by their bytes. */
function compareKeys(a: readonly string[], b: readonly string[], order: readonly PartOrder[]): number {
  for (const [at, part] of a.entries()) {
    const other = b[at] ?? '';
    if (part === other) continue;
    if (order[at] === 'number') return BigInt(part) < BigInt(other) ? -1 : 1;
    return Buffer.compare(Buffer.from(part), Buffer.from(other));
  }
  return 0;
}

/** Fetches from both sides at once, also when only one of them needs rows. */
async function fetchBoth(before: Rows, after: Rows): Promise<number> {
  if (!before.needsMore && !after.needsMore) return 0;
  const [old, fresh] = await Promise.all([before.fetch(), after.fetch()]);
  return old + fresh;
}

/**
 * The differences of two ordered lists of rows. Rows without a key have their digest for one: there can be several equal
 * ones, and each matches one of the other side.
 * @param onOpen called when both queries have found their tables
 * @param onRows called with the number of rows that were read
 */
export async function* differencesOf(
  queries: { before: Query; after: Query },
  order: readonly PartOrder[],
  { onOpen, onRows }: { onOpen: () => Promise<void>; onRows: (rows: number) => void },
): AsyncGenerator<Difference> {
  const [before, after] = await Promise.all([Rows.open(queries.before), Rows.open(queries.after)]);
  await onOpen();
  for (;;) {
    const read = await fetchBoth(before, after);
    if (read > 0) onRows(read);
    const [old, fresh] = [before.current(), after.current()];
    if (!old && !fresh) break;
    const comparison = old && fresh ? compareKeys(old.key, fresh.key, order) : old ? -1 : 1;
    if (comparison < 0) yield { before: old, after: null };
    else if (comparison > 0) yield { before: null, after: fresh };
    else if (old?.digest !== fresh?.digest) yield { before: old, after: fresh };
    if (comparison <= 0) before.next();
    if (comparison >= 0) after.next();
  }
  await Promise.all([before.close(), after.close()]);
}
