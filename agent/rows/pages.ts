import { CELL_BYTES_MAX } from '../../shared/limits.ts';
import { BOUNDS } from '../../shared/protocol/bounds.ts';
import type { Cell } from '../../shared/protocol/tables.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { HostError } from '../process/host-error.ts';
import { cellOf } from './cells.ts';
import {
  fromTable,
  type Key,
  type KeyOperators,
  type TableColumn,
  type TableDescription,
  type TableState,
  wireColumn,
} from './describe-table.ts';

/** Lengths to which cells are cut, in characters. A base64 text cut to one of them can still be decoded. */
export const CUTS = [CELL_BYTES_MAX, 16_384, 4_096, 1_024, 256, 64, 16];
/** Bytes around a cell in JSON at most: `{"cut":},` */
const AROUND_CELL = 12;
/** Bytes of the message for everything but cells and columns. */
export const REST_BYTES = 8_192;
/** SQLSTATE `too_many_columns`. */
export const TOO_MANY_COLUMNS = '54011';

const START = 'pg_catalog.left(cell, cut)';
const SIZE = `coalesce(pg_catalog.octet_length(pg_catalog.to_json(${START})::pg_catalog.text), 4) + ${AROUND_CELL}`;

/**
 * SQL that reads rows of `n bigint, cells text[]` and returns those of the first `limit` that fit into
 * `bytes` of JSON, as one `line` each. All cells are cut to the longest length with which the whole page
 * fits. The server does it, so that a page of huge cells is never transferred. It is one statement, because a
 * view could return other rows when it is read again. Most pages have no line as long as a cell may be and fit
 * as they are, which takes half of the time.
 */
const fitting = (source: string, limit: number, bytes: number) => `
  WITH page (n, cells) AS MATERIALIZED (${source}),
  small (is_small) AS MATERIALIZED (
    SELECT coalesce(pg_catalog.sum(pg_catalog.pg_column_size(cells)) <= ${bytes}, true) FROM page
  ),
  whole (n, line) AS MATERIALIZED (
    SELECT n, pg_catalog.to_json(cells)::pg_catalog.text FROM page, small WHERE is_small AND n <= ${limit}
  ),
  verdict (fits) AS MATERIALIZED (
    SELECT (SELECT is_small FROM small) AND coalesce(pg_catalog.max(pg_catalog.octet_length(line)) <= ${CELL_BYTES_MAX}
      AND pg_catalog.sum(pg_catalog.octet_length(line)) <= ${bytes}, true) FROM whole
  ),
  fitting (cut) AS MATERIALIZED (
    SELECT coalesce((
      SELECT cut FROM pg_catalog.unnest('{${CUTS.join(',')}}'::int[]) AS cut
      WHERE (SELECT pg_catalog.sum(${SIZE}) FROM page, pg_catalog.unnest(cells) AS cell
             WHERE n <= ${limit}) <= ${bytes}
      LIMIT 1), ${CUTS.at(-1)})
  ),
  lines (n, line) AS (
    SELECT n, (
      SELECT pg_catalog.json_agg(
        CASE WHEN pg_catalog.length(cell) > cut THEN pg_catalog.json_build_object('cut', ${START})
             ELSE pg_catalog.to_json(cell) END ORDER BY position)::pg_catalog.text
      FROM pg_catalog.unnest(cells) WITH ORDINALITY AS cell (cell, position))
    FROM page, fitting WHERE n <= ${limit} AND NOT (SELECT fits FROM verdict)
  ),
  measured (n, line, size) AS (
    SELECT n, line, pg_catalog.sum(pg_catalog.octet_length(line)) OVER (ORDER BY n) FROM lines
  ),
  result (n, line) AS (
    SELECT n, line FROM whole WHERE (SELECT fits FROM verdict)
    UNION ALL
    SELECT n, line FROM measured WHERE size <= ${bytes} OR n = 1
  )
  SELECT line, (SELECT pg_catalog.count(*) FROM page) AS found FROM result ORDER BY n`;

/**
 * SQL that returns the first `limit` rows of `n bigint, cells text[]` as one `line` each. The lines are null if the cells
 * exceed `bytes`; escaped, they can still.
 */
const whole = (source: string, limit: number, bytes: number) => `
  SELECT line, found FROM (
    SELECT n, pg_catalog.count(*) OVER () AS found,
      CASE WHEN pg_catalog.sum(pg_catalog.pg_column_size(cells)) OVER () <= ${bytes}
        THEN pg_catalog.to_json(cells)::pg_catalog.text END AS line
    FROM (${source}) AS page (n, cells)) AS lines
  WHERE n <= ${limit} ORDER BY n`;

/** One row of a page, and how many rows the page was read from. */
interface Line {
  line: string;
  found: string;
}

/** Bytes of a message for the cells of these columns. @throws HostError STATEMENT_REFUSED */
function budgetFor(columns: readonly TableColumn[]): number {
  const described = Buffer.byteLength(JSON.stringify(columns.map(wireColumn)));
  const budget = BOUNDS.messageBytes - REST_BYTES - described;
  if (budget < BOUNDS.messageBytes / 4)
    throw new HostError('STATEMENT_REFUSED', 'the names of the columns are too long', {
      sqlstate: TOO_MANY_COLUMNS,
    });
  return budget;
}

/**
 * Runs `source`, which returns rows of `n bigint, cells text[]`, and reads as many of the first `limit` as
 * fit into one message of the link.
 * @param budget bytes of JSON for the rows
 * @throws HostError STATEMENT_REFUSED
 */
export async function readPage(
  session: Session,
  columns: readonly TableColumn[],
  source: string,
  values: readonly (string | null)[],
  limit: number,
  budget = budgetFor(columns),
): Promise<{ rows: Cell[][]; hasMore: boolean }> {
  const { rows } = await session.query<Line>(fitting(source, limit, budget), [...values]);
  return pageOf(columns, rows);
}

/**
 * The same for a page that fits as it is, which most do: PostgreSQL takes half of the time. The page may be read again by
 * `readPage`, so `source` only reads.
 * @returns null if it does not fit
 * @throws HostError STATEMENT_REFUSED
 */
export async function readWholePage(
  session: Session,
  columns: readonly TableColumn[],
  source: string,
  values: readonly (string | null)[],
  limit: number,
): Promise<{ rows: Cell[][]; hasMore: boolean } | null> {
  const budget = budgetFor(columns);
  const { rows } = await session.query<Line | { line: null }>(whole(source, limit, budget), [...values]);
  const lines = rows.filter((row): row is Line => row.line !== null);
  const sizes = lines.map(({ line }) => Buffer.byteLength(line));
  const fits =
    sizes.every((size) => size <= CELL_BYTES_MAX) && sizes.reduce((sum, size) => sum + size, 0) <= budget;
  return fits && lines.length === rows.length ? pageOf(columns, lines) : null;
}

/** @param rows the `found` of a page is the number of rows that it was read from */
const pageOf = (columns: readonly TableColumn[], rows: readonly Line[]) => ({
  rows: rows.map(({ line }) => {
    const cells = JSON.parse(line) as Parameters<typeof cellOf>[1][];
    return columns.map((column, index) => cellOf(column, cells[index] ?? null));
  }),
  hasMore: Number(rows[0]?.found ?? 0) > rows.length,
});

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
export const STEP_LEAST = 1_000;
const STEP_MOST = 1_000_000;

/**
 * Rows between two marks of a table of this size, so that the whole table needs half of the marks it may
 * have.
 */
export const stepFor = (estimatedRows: number) =>
  Math.min(Math.max(Math.ceil(estimatedRows / (MARKS_PER_TABLE / 2)), STEP_LEAST), STEP_MOST);

/**
 * Remembers the keys at some offsets of the tables that were browsed last, so that a deep page is found from
 * the mark before it. A mark is valid while the table's `state` is the same: inserted or deleted rows have
 * moved it since.
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
export interface SeekableTable extends OrderedTable, TableState {
  /** The operator that compares rows with a mark. */
  atLeast: string;
}

/**
 * Rows are compared by one operator, but a key over several types can have one for each: then there is no
 * result.
 */
export function seekable(
  table: OrderedTable,
  operators: KeyOperators,
  state: TableState,
): SeekableTable | null {
  const ofKey = table.key.columns.map((column) => operators.get(column.operator_class)?.at_least);
  const [atLeast, ...others] = new Set(ofKey);
  return atLeast && others.length === 0 ? { ...table, ...state, atLeast } : null;
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
 * Finds the key of the row at `offset` by reading the index from the nearest mark on, and records marks on
 * the way. The first jump deep into a table therefore reads the index from its start; later ones begin near
 * their page.
 * @returns the key's values; `beyond` when the table has fewer rows
 */
export async function seek(
  marks: PageMarks,
  session: Session,
  table: SeekableTable,
  offset: number,
): Promise<KeyValues | 'beyond'> {
  const { state, likely_rows } = table;
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
