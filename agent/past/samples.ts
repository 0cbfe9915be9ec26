import { createHash } from 'node:crypto';
import { z } from 'zod';
import { identifier, type Session } from '../postgres/connect.ts';

/** Samples of tables, to be found again in a recovery: counts, and digests of rows by key. */

/** Tables of a record. */
const TABLES = 3;
/** Rows at each end of the key. */
const ROWS_AT_END = 50;
/** The rows of a larger table are not counted. */
const COUNTED_ROWS = 1_000_000;

const Digest = z.string().nullable();

/** Null: it was changing when it was written down, or is not known. */
export const Sample = z.strictObject({
  schema: z.string(),
  name: z.string(),
  key: z.array(z.string()).min(1),
  count: z.int().nonnegative().nullable(),
  first: Digest,
  last: Digest,
  /** Rows behind the digests. */
  rows: z.int().nonnegative(),
});
export type Sample = z.output<typeof Sample>;

type Table = Pick<Sample, 'schema' | 'name' | 'key'> & { isCounted: boolean };

/**
 * Some tables that the session may read, and that are copied as they are: with a primary key, logged, without policies, of no
 * extension.
 */
export async function chooseTables(session: Session): Promise<Table[]> {
  const { rows } = await session.query<{ schema: string; name: string; key: string; estimated: string }>(
    `SELECT nspname AS schema, relname AS name, reltuples::text AS estimated,
       (SELECT json_agg(attname ORDER BY place) FROM unnest(indkey::int2[]) WITH ORDINALITY AS k (number, place)
        JOIN pg_attribute ON attrelid = c.oid AND attnum = number)::text AS key
     FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
     JOIN pg_index ON indrelid = c.oid AND indisprimary AND indisvalid
     WHERE relkind = 'r' AND relpersistence = 'p' AND NOT relrowsecurity
       AND nspname <> 'information_schema' AND nspname !~ '^pg_'
       AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
       AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'e')
     ORDER BY random() LIMIT ${TABLES}`,
  );
  return rows.map(({ schema, name, key, estimated }) => ({
    schema,
    name,
    key: z.array(z.string()).parse(JSON.parse(key)),
    isCounted: Number(estimated) <= COUNTED_ROWS,
  }));
}

/** @returns the digest of the rows at one end of the key, and how many there are */
async function digestEnd(session: Session, { schema, name, key }: Table, order: 'ASC' | 'DESC') {
  const by = key.map((column) => `${identifier(column)} ${order}`).join(', ');
  const { rows } = await session.query<Record<string, string | null>>(
    `SELECT * FROM ONLY ${identifier(schema)}.${identifier(name)} ORDER BY ${by} LIMIT ${ROWS_AT_END}`,
  );
  const digest = createHash('sha256');
  for (const row of rows) digest.update(`${JSON.stringify(Object.entries(row).sort())}\n`);
  return { digest: digest.digest('hex'), rows: rows.length };
}

/** @param session in one snapshot, in which values are text in a fixed form */
export async function readSample(session: Session, table: Table): Promise<Sample> {
  const { schema, name, key } = table;
  const first = await digestEnd(session, table, 'ASC');
  const last = await digestEnd(session, table, 'DESC');
  const counted = table.isCounted
    ? await session.query<{ count: string }>(
        `SELECT count(*)::text AS count FROM ONLY ${identifier(schema)}.${identifier(name)}`,
      )
    : null;
  const count = counted ? Number(counted.rows[0]?.count) : null;
  return { schema, name, key, count, first: first.digest, last: last.digest, rows: first.rows + last.rows };
}

/** Keeps the parts that two samples of a table share, which any state between them has too. @returns null: none */
export function steadyPart(before: Sample, after: Sample): Sample | null {
  const same = <K extends 'count' | 'first' | 'last'>(part: K) =>
    before[part] === after[part] ? before[part] : null;
  const steady = { ...before, count: same('count'), first: same('first'), last: same('last') };
  return steady.first === null && steady.last === null ? null : steady;
}

/** @returns whether a recovered table has everything that its record has */
export const isAsRecorded = (recorded: Sample, found: Sample): boolean =>
  (['count', 'first', 'last'] as const).every(
    (part) => recorded[part] === null || recorded[part] === found[part],
  );
