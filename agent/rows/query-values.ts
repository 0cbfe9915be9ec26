import type { Cell, Scalar } from '../../shared/protocol/tables.ts';
import type { Session } from '../postgres/connect.ts';
import type { Field } from '../postgres/run-statement.ts';
import { HostError } from '../servers/host-error.ts';
import { cellOf } from './cells.ts';

/** The text sent for a parameter, whose type PostgreSQL infers. @throws HostError INVALID_CALL */
export function inputOfQuery(value: Scalar | null): string | null {
  if (value === null) return null;
  if (typeof value === 'number' && Number.isInteger(value) && !Number.isSafeInteger(value))
    throw new HostError('INVALID_CALL', 'this number loses digits in JSON: send it as a string');
  return String(value);
}

/** A cell of a result, as the table browser shows values of its type. @param length in characters */
export function cellOfResult({ dataTypeID }: Field, text: string | null, length: number): Cell {
  if (text === null) return null;
  const base_oid = String(dataTypeID);
  const isBytes = base_oid === BYTEA;
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
