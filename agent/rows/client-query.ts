import { BOUNDS } from '../../shared/protocol/bounds.ts';
import type { Cell, Scalar } from '../../shared/protocol/tables.ts';
import type { Session } from '../postgres/connect.ts';
import type { Field } from '../postgres/run-statement.ts';
import { HostError } from '../process/host-error.ts';
import { cellOf } from './cells.ts';
import { CUTS, REST_BYTES, TOO_MANY_COLUMNS } from './pages.ts';

/** The text sent for a parameter, whose type PostgreSQL infers. @throws HostError INVALID_CALL */
export function inputOfQuery(value: Scalar | null): string | null {
  if (value === null) return null;
  if (typeof value === 'number' && Number.isInteger(value) && !Number.isSafeInteger(value))
    throw new HostError('INVALID_CALL', 'this number loses digits in JSON: send it as a string');
  return String(value);
}

/** A cell of a result, as the table browser shows values of its type. @param length in characters */
function cellOfResult({ dataTypeID }: Field, text: string | null, length: number): Cell {
  if (text === null) return null;
  const base_oid = String(dataTypeID);
  // A client can have set another output format than hexadecimal digits.
  const isBytes = base_oid === BYTEA && text.startsWith('\\x');
  const shown = isBytes ? Buffer.from(text.slice(2, 2 + 2 * length), 'hex').toString('base64') : text;
  const cut = shown.slice(0, length).replace(/[\uD800-\uDBFF]$/, '');
  return cellOf({ base_oid }, shown.length > length ? { cut } : shown);
}

const BYTEA = '17';

/** The names of the types of these columns, as PostgreSQL formats them. */
export async function typeNames(session: Session, fields: readonly Field[]): Promise<string[]> {
  if (fields.length === 0) return [];
  const { rows } = await session.query<{ name: string }>(
    `SELECT pg_catalog.format_type(type, modifier) AS name
     FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.oid[]), pg_catalog.unnest($2::pg_catalog.int4[]))
       WITH ORDINALITY AS field (type, modifier, position) ORDER BY position`,
    [fields.map(({ dataTypeID }) => dataTypeID), fields.map(({ dataTypeModifier }) => dataTypeModifier)],
  );
  return rows.map(({ name }) => name);
}

/**
 * The type of a column beyond its name, as `typeNames` returns it: a type's name with its schema and
 * modifier.
 */
const TYPE_BYTES_MAX = 300;

/** Bytes of a message for the results of a text. */
export const RESULT_BYTES = BOUNDS.messageBytes - REST_BYTES;

/** Bytes of a result in JSON for everything but its columns and rows, at most. */
const AROUND_RESULT = 200;

/** The rows of a statement that fit into its part of a message of the link. */
export class QueryRows {
  fields: readonly Field[] = [];
  readonly rows: Cell[][] = [];
  hasMore = false;
  readonly #budget: number;
  #left: number;

  constructor(budget: number) {
    this.#budget = budget;
    this.#left = budget - AROUND_RESULT;
  }

  /** Bytes that it uses of its part. */
  get bytes(): number {
    return this.#budget - this.#left;
  }

  /**
   * Adds a row, if it fits. The first one is cut until it does.
   * @returns whether there is room for more
   * @throws HostError STATEMENT_REFUSED when the columns alone fill the message
   */
  add(texts: readonly (string | null)[], fields: readonly Field[]): boolean {
    if (this.hasMore) return false;
    if (this.rows.length === 0) this.#begin(fields);
    for (const length of this.rows.length === 0 ? CUTS : CUTS.slice(0, 1)) {
      const row = fields.map((field, at) => cellOfResult(field, texts[at] ?? null, length));
      const bytes = Buffer.byteLength(JSON.stringify(row)) + 1;
      if (bytes > this.#left) continue;
      this.#left -= bytes;
      this.rows.push(row);
      return true;
    }
    this.hasMore = true;
    return false;
  }

  #begin(fields: readonly Field[]): void {
    this.fields = fields;
    const names = Buffer.byteLength(JSON.stringify(fields.map(({ name }) => name)));
    this.#left -= names + fields.length * TYPE_BYTES_MAX;
    if (this.#left < this.#budget / 4)
      throw new HostError('STATEMENT_REFUSED', 'the result has too many columns', {
        sqlstate: TOO_MANY_COLUMNS,
      });
  }
}
