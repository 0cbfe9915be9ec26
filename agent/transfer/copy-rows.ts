import { pipeline } from 'node:stream/promises';
import { from as copyFrom, to as copyTo } from 'pg-copy-streams';
import { SOURCE_TABLES_MAX, type SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import { fitting } from '../difference/schema/compare-schemas.ts';
import { describeEntry, type RefusedEntry } from '../dump/restore.ts';
import { identifier, inTransaction, literal, type Session } from '../postgres/connect.ts';
import { FIRST_OWN, noMember, OWN_SCHEMA } from '../postgres/own-objects.ts';
import { asHostError, sqlState } from '../postgres/postgres-failure.ts';
import { HostError } from '../process/host-error.ts';
import { finding, numberOf, Refused, short } from './source-address.ts';

/** A table whose rows are copied: a partition is one, a partitioned table is not. */
export interface CopiedTable {
  schema: string;
  name: string;
  /** Columns whose values are stored, in their order; a generated one is computed again. */
  columns: string[];
  /** Columns of the primary key; empty without one, and if a type is not PostgreSQL's own. */
  key: string[];
  /** All types are PostgreSQL's own, whose binary form is the same in versions 15 to 18. */
  isBinary: boolean;
  /** PostgreSQL's estimates at the source, without indexes. */
  rows: number;
  bytes: number;
}

/** Errors of the source, and not of this server. */
const OF_SOURCE = new WeakSet<object>();

/** Marks an error of `work` as one of the source. */
export async function atSource<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    if (error instanceof Error) OF_SOURCE.add(error);
    throw error;
  }
}

export const isOfSource = (error: unknown): error is Error => error instanceof Error && OF_SOURCE.has(error);

/** SQLSTATE classes whose messages name objects: constraints, columns, functions. */
const OF_OBJECTS = /^(?:0A|2B|3D|3F|42)/;

/** Other messages can quote a value, and those who see the job may not see it. */
export const withoutValue = (message: string, sqlstate: string) =>
  OF_OBJECTS.test(sqlstate) ? message : `SQLSTATE ${sqlstate}`;

/** @returns the error itself if this server is the reason */
export function refused(error: unknown, of: (reason: string) => SourceFinding): unknown {
  const sqlstate = sqlState(error);
  if (!(error instanceof Error) || sqlstate === undefined || !/^[0-9A-Z]{5}$/.test(sqlstate)) return error;
  return asHostError(error) instanceof HostError
    ? error
    : new Refused(of(withoutValue(error.message, sqlstate)));
}

export const refusedRows = (table: CopiedTable, error: unknown): unknown =>
  refused(error, (reason) =>
    finding('rows', `PostgreSQL refuses the rows of ${short(tableName(table))} here: ${reason}.`, {
      object: short(tableName(table)),
    }),
  );

export const refusedSchema = ({ entry, error }: RefusedEntry): unknown =>
  refused(error, (reason) =>
    finding('schema', `PostgreSQL refuses the ${short(describeEntry(entry))} here: ${reason}.`, {
      object: short(describeEntry(entry)),
      statement: short(entry.definition.trim()),
    }),
  );

/**
 * Returns whether values of a type have a form that differs between servers. Those of `reg…` types are object ids, which are
 * others here. An array or a range names the type of its elements by its object id, which is the same for
 * PostgreSQL's own types.
 */
const isForeign = (type: string) =>
  `(${type}.oid >= ${FIRST_OWN} OR ${type}.typname ~ '^_?(?:reg|aclitem|money)')`;

const TABLES = `
  SELECT n.nspname AS schema, c.relname AS name,
    greatest(c.reltuples, 0)::float8 AS rows, pg_table_size(c.oid)::float8 AS bytes,
    coalesce((SELECT json_agg(a.attname ORDER BY a.attnum) FROM pg_attribute AS a
      WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''), '[]') AS columns,
    coalesce((SELECT CASE WHEN bool_and(NOT ${isForeign('t')}) THEN json_agg(a.attname ORDER BY a.attnum) END
      FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey) JOIN pg_type AS t ON t.oid = a.atttypid
      WHERE i.indrelid = c.oid AND i.indisprimary), '[]') AS key,
    NOT EXISTS (SELECT FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
      WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND ${isForeign('t')}) AS is_binary
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  WHERE c.relkind = 'r' AND c.relpersistence <> 't' AND ${OWN_SCHEMA} AND ${noMember('pg_class', 'c.oid')}
  ORDER BY pg_table_size(c.oid) DESC, 1, 2`;

interface FoundTable extends Omit<CopiedTable, 'isBinary'> {
  is_binary: boolean;
}

/** The tables of a source whose rows are copied, largest first. */
export async function listTables(
  session: Session,
  chosen: readonly (readonly [schema: string, name: string])[],
): Promise<CopiedTable[]> {
  const { rows } = await atSource(session.query<FoundTable>(TABLES));
  const wanted = new Set(chosen.map((name) => JSON.stringify(name)));
  return rows
    .filter(({ schema, name }) => wanted.has(JSON.stringify([schema, name])))
    .map(({ schema, name, columns, key, rows, bytes, is_binary }) => ({
      schema,
      name,
      columns,
      key,
      rows: numberOf(rows),
      bytes: numberOf(bytes),
      isBinary: is_binary,
    }));
}

export const tableName = ({ schema, name }: Pick<CopiedTable, 'schema' | 'name'>): string =>
  `${identifier(schema)}.${identifier(name)}`;

/** The sessions of one of several that work concurrently. */
export interface Worker {
  /** In the snapshot that is copied. */
  source: Session;
  target: Session;
}

/** Gives each item to a worker that is free. After a failure, every worker ends before it is thrown. */
export async function forEach<T, W>(
  items: readonly T[],
  workers: readonly W[],
  work: (worker: W, item: T) => Promise<unknown>,
): Promise<void> {
  const waiting = [...items];
  const ends = await Promise.allSettled(
    workers.map(async (worker) => {
      try {
        for (let item = waiting.shift(); item !== undefined; item = waiting.shift()) await work(worker, item);
      } finally {
        waiting.length = 0;
      }
    }),
  );
  for (const end of ends) if (end.status === 'rejected') throw end.reason;
}

/** Everything that has statistics, each by itself. */
export async function listAnalyzed(target: Session): Promise<string[]> {
  const { rows } = await target.query<{ schema: string; name: string }>(
    `SELECT n.nspname AS schema, c.relname AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'm') AND ${OWN_SCHEMA}
     ORDER BY c.relpages DESC`,
  );
  return rows.map((relation) => tableName(relation));
}

/**
 * Copies the rows of one table as one transaction of the target.
 * @param source in the snapshot that is copied
 * @param searchPath in which functions of generated columns and checks find their names
 * @param onBytes called with the bytes of each piece
 * @returns the rows that the source sent and the target stored: they are the same number
 */
export async function copyRows(
  source: Session,
  target: Session,
  table: CopiedTable,
  searchPath: string,
  onBytes: (bytes: number) => void,
): Promise<number> {
  // `COPY … (columns)` cannot name none.
  const columns = table.columns.length === 0 ? '' : ` (${table.columns.map(identifier).join(', ')})`;
  const format = table.isBinary ? 'binary' : 'text';
  const relation = `${tableName(table)}${columns}`;
  // Rows of a table that is as new as its transaction are frozen immediately, so nobody has to write its blocks again.
  await target.query(
    `BEGIN; TRUNCATE ONLY ${tableName(table)}; SELECT pg_catalog.set_config('search_path', ${literal(searchPath)}, true)`,
  );
  const reader = source.query(copyTo(`COPY ${relation} TO STDOUT (FORMAT ${format})`));
  const writer = target.query(copyFrom(`COPY ${relation} FROM STDIN (FORMAT ${format}, FREEZE)`));
  // The driver reports the end of a session also to a stream that has failed already.
  reader.on('error', (error) => OF_SOURCE.add(error));
  writer.on('error', () => {});
  reader.on('data', (chunk: Buffer) => onBytes(chunk.length));
  try {
    await pipeline(reader, writer);
    if (reader.rowCount !== writer.rowCount)
      throw new Error(`${writer.rowCount} of ${reader.rowCount} rows were stored`);
  } catch (error) {
    // A table can be tried again in the same sessions.
    await target.query('ROLLBACK').catch(() => {});
    throw error;
  }
  await target.query('COMMIT');
  return writer.rowCount;
}

interface SequenceValue {
  schema: string;
  name: string;
  last_value: string;
  /** True if the next value comes after `value`. Otherwise `value` is the next one, as after `setval(…, false)`. */
  is_called: boolean;
}

const SEQUENCES = `SELECT n.nspname AS schema, c.relname AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  WHERE c.relkind = 'S' AND c.relpersistence <> 't' AND ${OWN_SCHEMA}
    AND CASE c.relkind WHEN 'S' THEN has_schema_privilege(n.oid, 'USAGE') AND has_sequence_privilege(c.oid, 'SELECT') END
  ORDER BY 1, 2`;

/**
 * The values of sequences. A sequence is in no snapshot, so its value is that of now. Only the sequence itself says, in
 * every version, whether its value was taken.
 */
export async function readSequences(session: Session): Promise<SequenceValue[]> {
  const { rows: found } = await atSource(session.query<{ schema: string; name: string }>(SEQUENCES));
  const values: SequenceValue[] = [];
  for (let at = 0; at < found.length; at += PER_STATEMENT) {
    const texts = found
      .slice(at, at + PER_STATEMENT)
      .map(
        ({ schema, name }) =>
          `SELECT ${literal(schema)} AS schema, ${literal(name)} AS name, last_value::text AS last_value, is_called FROM ${tableName({ schema, name })}`,
      );
    const { rows } = await atSource(session.query<SequenceValue>(texts.join(' UNION ALL ')));
    values.push(...rows.map((row) => ({ ...row, is_called: row.is_called === true })));
  }
  return values;
}

const PER_STATEMENT = 500;

/** The sequences of a database, by schema and name. */
const OWN_SEQUENCES = 'SELECT schemaname AS schema, sequencename AS name FROM pg_sequences';

/**
 * Sets sequences so that the next value is the one after the source's. Those that were not copied are skipped.
 * @throws Refused for a value that a sequence cannot have here
 */
export async function setSequences(target: Session, values: readonly SequenceValue[]): Promise<number> {
  const { rows } = await target.query<Omit<SequenceValue, 'last_value'>>(OWN_SEQUENCES);
  const present = new Set(rows.map((sequence) => tableName(sequence)));
  const copied = values.filter((sequence) => present.has(tableName(sequence)));
  const settings = copied.map(
    (sequence) =>
      `pg_catalog.setval(${literal(tableName(sequence))}::pg_catalog.regclass, ${literal(sequence.last_value)}::int8, ${sequence.is_called})`,
  );
  for (let at = 0; at < settings.length; at += PER_STATEMENT)
    await inTransaction(target, () =>
      target.query(`SELECT ${settings.slice(at, at + PER_STATEMENT).join(', ')}`),
    ).catch((error) => {
      throw refused(error, (reason) =>
        finding('rows', `PostgreSQL refuses the value of a sequence of the source here: ${reason}.`),
      );
    });
  return copied.length;
}

/**
 * Sequences that a column's default, or the column itself, takes its values from. Its type is PostgreSQL's own: the cast
 * of another one is code of a tenant.
 */
const KEYS = `
  SELECT DISTINCT n.nspname AS schema, s.relname AS name, tn.nspname AS table_schema, t.relname AS table_name, a.attname AS column
  FROM pg_catalog.pg_class AS s
  JOIN pg_catalog.pg_namespace AS n ON n.oid = s.relnamespace
  JOIN pg_catalog.pg_depend AS d ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = s.oid
    AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.deptype IN ('a', 'i') AND d.refobjsubid > 0
  JOIN pg_catalog.pg_class AS t ON t.oid = d.refobjid
  JOIN pg_catalog.pg_namespace AS tn ON tn.oid = t.relnamespace
  JOIN pg_catalog.pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = d.refobjsubid
  WHERE s.relkind = 'S' AND a.atttypid < ${FIRST_OWN} ORDER BY 1, 2`;

interface KeySequence extends Omit<SequenceValue, 'last_value'> {
  table_schema: string;
  table_name: string;
  column: string;
}

/** Sets sequences from the largest key in their tables, for a source that cannot be read. */
export async function setLargestKeys(session: Session): Promise<number> {
  const { rows } = await session.query<KeySequence>(KEYS);
  const settings = rows.map(({ schema, name, table_schema, table_name, column }) => {
    const sequence = `${literal(tableName({ schema, name }))}::pg_catalog.regclass`;
    const table = tableName({ schema: table_schema, name: table_name });
    return `SELECT pg_catalog.setval(${sequence}, key, true)
      FROM (SELECT pg_catalog.max(${identifier(column)})::pg_catalog.int8 AS key FROM ${table}) AS largest WHERE key IS NOT NULL`;
  });
  for (const setting of settings) await session.query(setting);
  return settings.length;
}

/** Rows of each table of which every value is compared, about. */
const SAMPLED = 10_000;
/** A longer key would make the answer too large. Bytes of its text. */
const KEY_BYTES_MAX = 1_000;

/**
 * A sample of all rows, because PostgreSQL refuses a view there: one that has got the name of the table meanwhile would run
 * its functions as this login.
 * @throws an error of the session
 */
export async function countRows(session: Session, table: CopiedTable): Promise<number> {
  const { rows } = await session.query<{ rows: string }>(
    `SELECT count(*)::text AS rows FROM ONLY ${tableName(table)} TABLESAMPLE SYSTEM (100)`,
  );
  return numberOf(rows[0]?.rows);
}

/** Some rows of a table. Without a key that can be compared, a row is known by all of its values. */
export interface Sample {
  /** By column of the key, the texts of its values. */
  keys: string[][];
  /** By row, of all its values. */
  digests: string[];
}

const keyNames = ({ key }: CopiedTable) => key.map((_, at) => `key_${at}`);

/** The servers may have other encodings. */
const digestOf = ({ columns }: CopiedTable) =>
  `md5(${columns.length === 0 ? "''" : `convert_to(ROW(${columns.map((name) => `r.${identifier(name)}`).join(', ')})::text, 'UTF8')`})`;

/** The rows of some blocks. @param rows how many the table has, about */
export async function readSample(session: Session, table: CopiedTable, rows: number): Promise<Sample> {
  const names = keyNames(table);
  const texts = table.key.map((name) => `r.${identifier(name)}::text`);
  const isShort = texts.map((text) => `octet_length(${text}) <= ${KEY_BYTES_MAX}`);
  const values = [...texts.map((text, at) => `${text} AS ${names[at]}`), `${digestOf(table)} AS digest`];
  const { rows: found } = await session.query<Record<string, string>>(
    `SELECT ${values.join(', ')}
     FROM ONLY ${tableName(table)} AS r TABLESAMPLE SYSTEM (${Math.min(100, (100 * SAMPLED) / Math.max(1, rows))})
     WHERE ${['true', ...isShort].join(' AND ')} LIMIT ${2 * SAMPLED}`,
  );
  const valuesOf = (name: string) => found.map((row) => String(row[name]));
  return { keys: names.map(valuesOf), digests: valuesOf('digest') };
}

/** The rows of a sample that a table does not have with the same values. */
export const missingRows = (session: Session, table: CopiedTable, sample: Sample): Promise<Sample> =>
  rowsThat(false, session, table, sample);

/** The rows of a sample that a table has with the same values. */
export const presentRows = (session: Session, table: CopiedTable, sample: Sample): Promise<Sample> =>
  rowsThat(true, session, table, sample);

async function rowsThat(
  arePresent: boolean,
  session: Session,
  table: CopiedTable,
  sample: Sample,
): Promise<Sample> {
  const has =
    sample.keys.length === 0
      ? await findByDigest(session, table, sample)
      : await findByKey(session, table, sample);
  const those = <T>(values: readonly T[]) => values.filter((_, at) => has(at) === arePresent);
  return { keys: sample.keys.map(those), digests: those(sample.digests) };
}

/** The digest reads the whole table. */
async function findByDigest(session: Session, table: CopiedTable, { digests }: Sample) {
  const { rows } = await session.query<{ digest: string }>(
    `SELECT DISTINCT ${digestOf(table)} AS digest FROM ONLY ${tableName(table)} AS r WHERE ${digestOf(table)} = ANY ($1)`,
    [digests],
  );
  const found = new Set(rows.map(({ digest }) => digest));
  return (at: number) => found.has(digests[at] ?? '');
}

/**
 * The types of the key here: those that a source names would be text in a statement, and one that is not PostgreSQL's
 * own could run code of the tenant in a cast.
 * @returns null if one is not
 */
async function keyTypes(session: Session, table: CopiedTable): Promise<string[] | null> {
  const { rows } = await session.query<{ name: string; type: string }>(
    `SELECT a.attname AS name, format_type(t.oid, a.atttypmod) AS type FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
     WHERE a.attrelid = $1::regclass AND a.attnum > 0 AND a.attname = ANY ($2) AND NOT ${isForeign('t')}`,
    [tableName(table), table.key],
  );
  const types = table.key.flatMap((name) => rows.find((row) => row.name === name)?.type ?? []);
  return types.length === table.key.length ? types : null;
}

async function findByKey(session: Session, table: CopiedTable, { keys, digests }: Sample) {
  const names = keyNames(table);
  const types = await keyTypes(session, table);
  if (types === null) return () => false;
  const typed = types.map((type, at) => `${names[at]}::${type} AS ${names[at]}`);
  const isSame = table.key.map((name, at) => `r.${identifier(name)} = s.${names[at]}`);
  const { rows } = await session.query<{ at: string }>(
    // Each key is there once, which the planner knows by GROUP BY only: it would read the whole table otherwise. As a
    // condition of the join, the digest would be computed of every row.
    `SELECT at FROM (
       SELECT s.at, s.digest, ${digestOf(table)} AS present FROM (
         SELECT ${names.join(', ')}, min(digest) AS digest, min(at) AS at FROM (
           SELECT ${typed.join(', ')}, digest, at
           FROM unnest(${[...names, 'digest'].map((_, at) => `$${at + 1}::text[]`).join(', ')}) WITH ORDINALITY AS sent(${names.join(', ')}, digest, at)
         ) AS typed GROUP BY ${names.join(', ')}
       ) AS s JOIN ONLY ${tableName(table)} AS r ON ${isSame.join(' AND ')} OFFSET 0
     ) AS compared WHERE present = digest`,
    [...keys, digests],
  );
  const found = new Set(rows.map(({ at }) => Number(at) - 1));
  return (at: number) => found.has(at);
}

/**
 * Returns whether a sample of the source's rows is here too, with every value.
 * @param rows how many there are
 * @returns the rows of the sample. An error of the source is marked as one
 */
export async function compareSample(source: Session, target: Session, table: CopiedTable, rows: number) {
  const sample = await atSource(readSample(source, table, rows));
  const missing = await missingRows(target, table, sample);
  return { sampled: sample.digests.length, isEqual: missing.digests.length === 0 };
}

/** Bytes of the list of tables in a message of the link. */
const TABLES_ROOM = 262_144;

/** The compared tables, as far as a message has room for them, and the rows of all. */
export function listCompared<T extends { rows: number }>(compared: readonly T[]) {
  const tables = fitting(compared.slice(0, SOURCE_TABLES_MAX), TABLES_ROOM);
  return {
    tables,
    has_more: tables.length < compared.length,
    rows: compared.reduce((sum, { rows }) => sum + rows, 0),
  };
}
