import { identifier, type Session } from '../postgres/connect.ts';
import { textOf } from '../rows/cells.ts';
import type { TableColumn, TableDescription } from '../rows/describe-table.ts';
import type { BlockRanges } from './extents.ts';

/** Parts of a key are texts of at most this many bytes; a longer one ends with a digest instead. */
const PART_BYTES_MAX = 256;
const PART_START = 240;

const INTEGERS = new Set(['20', '21', '23']);
const UUID = '2950';

/** 16 bytes of SHA-256 as hexadecimal digits. */
const digestOf = (text: string) =>
  `pg_catalog.encode(pg_catalog.substr(pg_catalog.sha256(pg_catalog.convert_to(${text}, 'UTF8')), 1, 16), 'hex')`;

/** How the values of a part of a key are ordered. */
export type PartOrder = 'number' | 'bytes';

interface KeyPart {
  /** SQL of its value. */
  sql: string;
  /** What `sql` is ordered by. */
  collation: string;
  /** The type of a parameter that it is compared with. */
  type: string;
  order: PartOrder;
}

const BY_BYTES = ' COLLATE pg_catalog."C"';
const TEXT = 'pg_catalog.text';

/** Numbers and UUIDs are ordered as their index is, everything else by the bytes of its text. */
function keyPart(column: TableColumn): KeyPart {
  const value = `t.${identifier(column.name)}`;
  if (INTEGERS.has(column.base_oid))
    return { sql: value, collation: '', type: 'pg_catalog.int8', order: 'number' };
  if (column.base_oid === UUID) return { sql: value, collation: '', type: 'pg_catalog.uuid', order: 'bytes' };
  const text = textOf(column, value);
  // No short text is equal to a shortened one, which is longer than the limit.
  const sql = `CASE WHEN pg_catalog.octet_length(${text}) OPERATOR(pg_catalog.<=) ${PART_BYTES_MAX} THEN ${text}
    ELSE pg_catalog.left(${text}, ${PART_START}) OPERATOR(pg_catalog.||) ${digestOf(text)} END`;
  return { sql, collation: BY_BYTES, type: TEXT, order: 'bytes' };
}

/** How the rows of a table are matched with those of the other side. */
export interface Matching {
  /** Columns of a key of both sides, in its order; null: rows have no identity, so only equal ones match. */
  key: string[] | null;
  /** The columns that are compared. */
  columns: string[];
}

const columnsNamed = ({ columns }: TableDescription, names: readonly string[]) =>
  names.map((name) => columns.find((column) => column.name === name) as TableColumn);

/** The key that both sides have: the primary key of `after`, or another one. */
export function matchingOf(before: TableDescription, after: TableDescription, columns: string[]): Matching {
  const asSet = (names: readonly string[]) => JSON.stringify(names.toSorted());
  const namesOf = ({ keys }: TableDescription) => keys.map((key) => key.columns.map(({ name }) => name));
  const others = new Set(namesOf(before).map(asSet));
  const typesOf = (table: TableDescription, names: readonly string[]) =>
    columnsNamed(table, names).map(({ base_oid }) => base_oid);
  const key = namesOf(after).find(
    (names) => others.has(asSet(names)) && `${typesOf(before, names)}` === `${typesOf(after, names)}`,
  );
  return { key: key ?? null, columns };
}

/**
 * SQL that reads `ctid`, `digest` and the parts of the key (`k1`, …) of rows in the order of the key. Its
 * parameters: $1 and $2 bound ranges of blocks, if there are any; the next ones are the key after which it
 * begins.
 */
export function orderedRows(
  table: TableDescription,
  from: string,
  { key, columns }: Matching,
  blocks: BlockRanges | null,
  after: readonly string[] | null,
): { text: string; values: unknown[]; order: PartOrder[] } {
  // One row as text: the type's output functions, and NULL differs from an empty text.
  const row = `ROW(${columns.map((name) => `t.${identifier(name)}`).join(', ')})`;
  const digest = digestOf(`pg_catalog.format('%s', ${row})`);
  const parts: KeyPart[] = key
    ? columnsNamed(table, key).map(keyPart)
    : [{ sql: digest, collation: BY_BYTES, type: TEXT, order: 'bytes' }];
  const named = parts.map(({ sql }, at) => `${sql} AS k${at + 1}`).join(', ');
  const rows = `SELECT t.ctid, ${key ? digest : `''::pg_catalog.text`} AS digest, ${named} FROM ${from} AS t`;
  const names = parts.map(({ collation }, at) => `r.k${at + 1}${collation}`);
  const values: unknown[] = blocks ? [tids(blocks, 0), tids(blocks, 1)] : [];
  // OFFSET 0 keeps it a scan of each range, which a join would not be.
  const source = blocks
    ? `ROWS FROM (pg_catalog.unnest($1::pg_catalog.tid[]), pg_catalog.unnest($2::pg_catalog.tid[])) AS range (low, high)
       CROSS JOIN LATERAL (${rows}
         WHERE t.ctid OPERATOR(pg_catalog.>=) range.low AND t.ctid OPERATOR(pg_catalog.<) range.high OFFSET 0) AS r`
    : `(${rows}) AS r`;
  const mark = after?.map((part, at) => `$${values.push(part)}::${parts[at]?.type ?? TEXT}`);
  const beyond = mark ? `WHERE ROW(${names.join(', ')}) OPERATOR(pg_catalog.>) ROW(${mark.join(', ')})` : '';
  const text = `SELECT r.ctid, r.digest, ${parts.map((_, at) => `r.k${at + 1}`).join(', ')} FROM ${source} ${beyond}
    ORDER BY ${names.join(', ')}`;
  return { text, values, order: parts.map(({ order }) => order) };
}

const tids = (blocks: BlockRanges, bound: 0 | 1) => blocks.map((range) => `(${range[bound]},0)`);

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
 * The differences of two ordered lists of rows. Rows without a key have their digest for one: there can be
 * several equal ones, and each matches one of the other side.
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
    const old = before.current();
    const fresh = after.current();
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
