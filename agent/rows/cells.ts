import { CELL_BYTES_MAX } from '../../shared/limits.ts';
import type { Cell, Scalar } from '../../shared/protocol/tables.ts';
import { identifier } from '../postgres/connect.ts';
import { HostError } from '../process/host-error.ts';
import type { TableColumn } from './describe-table.ts';

/**
 * How values of a type are represented in JSON, by the type's fixed oid. Every other type is PostgreSQL's own
 * text, JSON included, because its numbers may have more digits than a client's parser preserves.
 */
const FORMS: Record<string, 'number' | 'boolean' | 'base64' | 'plain'> = {
  '16': 'boolean',
  '17': 'base64',
  '21': 'number', // smallint
  '23': 'number', // integer
  '700': 'number', // real
  '701': 'number', // double precision
  '25': 'plain', // text
  '1043': 'plain', // character varying
};

const formOf = ({ base_oid }: Pick<TableColumn, 'base_oid'>) => FORMS[base_oid] ?? 'text';

/**
 * SQL for a value as text. `format` calls the type's output function, where a cast could be the tenant's own.
 * @param length number of characters after which the text may be cut
 */
export function textOf(column: TableColumn, value: string, length?: number): string {
  const cutTo = (text: string) => (length === undefined ? text : `pg_catalog.left(${text}, ${length})`);
  switch (formOf(column)) {
    case 'plain':
      return cutTo(`(${value})::pg_catalog.text`);
    case 'base64': {
      const bytes =
        length === undefined ? value : `pg_catalog.substr(${value}, 1, ${Math.ceil(length * 0.75)})`;
      return `pg_catalog.translate(pg_catalog.encode(${bytes}, 'base64'), E'\\n', '')`;
    }
    default:
      // Not IS NULL, which is also true of a composite value of nulls.
      return `CASE WHEN ${value} IS DISTINCT FROM NULL THEN ${cutTo(`pg_catalog.format('%s', ${value})`)} END`;
  }
}

/** SQL for a client's parameter as a value of the column's type, which the type's input function reads. */
export const parameterOf = (column: TableColumn, number: number, type = ''): string =>
  formOf(column) === 'base64'
    ? `pg_catalog.decode($${number}::pg_catalog.text, 'base64')`
    : `$${number}${type && `::${type}`}`;

/**
 * The text sent for such a parameter.
 * @throws HostError INVALID_CALL for a number that has lost digits in JSON
 */
export function inputOf(column: TableColumn, value: Scalar | null): string | null {
  if (value === null) return null;
  if (typeof value === 'number' && formOf(column) !== 'number' && !Number.isSafeInteger(value)) {
    throw new HostError('INVALID_CALL', 'this number loses digits in JSON: send it as a string');
  }
  return String(value);
}

/**
 * SQL for one row of a page: its cells as text, one character longer than their limit so that the cut is
 * noticed.
 */
export const cellsOf = (columns: readonly TableColumn[], alias: string) =>
  `ARRAY[${columns
    .map((column) => textOf(column, `${alias}.${identifier(column.name)}`, CELL_BYTES_MAX + 1))
    .join(', ')}]::pg_catalog.text[]`;

/** Bytes of one unit of a text at most. */
const BYTES_PER_UNIT = 3;

/** The cell as it is sent over the link. @param read its text as `readPage` reads it, `cut` or whole */
export function cellOf(column: Pick<TableColumn, 'base_oid'>, read: string | null | { cut: string }): Cell {
  if (read === null) return null;
  const text = typeof read === 'string' ? read : read.cut;
  if (text.length * BYTES_PER_UNIT > CELL_BYTES_MAX) {
    const bytes = Buffer.from(text);
    if (bytes.length > CELL_BYTES_MAX) return { cut: wholeCharacters(bytes.subarray(0, CELL_BYTES_MAX)) };
  }
  if (typeof read !== 'string') return read;
  switch (formOf(column)) {
    case 'boolean':
      return text === 't';
    case 'number':
      return numberOf(text);
    default:
      return text;
  }
}

const wholeCharacters = (bytes: Uint8Array) =>
  new TextDecoder('utf-8', { fatal: false, ignoreBOM: true }).decode(bytes, { stream: true });

/** JSON has neither NaN nor infinities, and JavaScript writes -0 as 0: these stay text. */
function numberOf(text: string): Cell {
  const number = Number(text);
  return Number.isFinite(number) && !Object.is(number, -0) ? number : text;
}
