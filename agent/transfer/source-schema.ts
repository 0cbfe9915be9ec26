import type { Archive } from '../dump/archive.ts';
import {
  type DumpConnection,
  DumpError,
  type DumpOptions,
  dumpSchema,
  errorOfDump,
} from '../dump/pg-dump.ts';
import type { Choice, RestorePlan } from '../dump/restore.ts';
import { identifier, type Pool, type Session } from '../postgres/connect.ts';
import { FIRST_OWN, noMember, OWN_SCHEMA } from '../postgres/own-objects.ts';
import { extensionsOfProject } from '../postgres/project-extensions.ts';
import type { AgentSettings } from '../process/settings.ts';
import { atSource } from './copy-rows.ts';
import type { LeftAlone } from './left-alone.ts';
import { finding, listNames, Refused, type Source, short } from './source-address.ts';
import { inSource, readAuthorities } from './source-session.ts';

/** The schema of a source: its dump, and what a dump does not say. */

type Named = readonly [schema: string, name: string];

export interface SchemaFacts {
  /** The setting of its clients. */
  ownPath: string;
  /** The path has the other schemas after its own: code without schemas finds its names. */
  searchPath: string;
  /** Materialized views with rows. */
  populated: Named[];
  /** Indexes that PostgreSQL could not finish, which are in no dump. */
  invalidIndexes: string[];
  /** Policies for named roles, with the tags of a dump. */
  policies: Named[];
  /** Tables that the login cannot read, and schemas that it cannot use. */
  unreadable: Named[];
  hiddenSchemas: string[];
}

/** More of them would slow each look for a name. */
const SCHEMAS_MAX = 50;
const LISTED_MAX = 1_000;

/** Settings of the login in this database, of the login, and of the database, in PostgreSQL's order. */
const SEARCH_PATH = `
  SELECT coalesce((
    SELECT substr(setting, 13) FROM pg_db_role_setting AS s CROSS JOIN LATERAL unnest(setconfig) AS setting
    WHERE setting LIKE 'search\\_path=%' AND setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = session_user))
      AND setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
    ORDER BY setrole <> 0 DESC, setdatabase <> 0 DESC LIMIT 1
  ), (SELECT boot_val FROM pg_settings WHERE name = 'search_path')) AS path, session_user::text AS login`;

const OWN_SCHEMAS = `SELECT nspname AS name FROM pg_namespace AS n WHERE ${OWN_SCHEMA} ORDER BY 1 LIMIT ${SCHEMAS_MAX + 1}`;

const POPULATED = `SELECT n.nspname AS schema, c.relname AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  WHERE c.relkind = 'm' AND c.relispopulated AND ${OWN_SCHEMA}`;

const INVALID = `SELECT format('%I.%I', n.nspname, c.relname) AS name FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  WHERE c.relkind = 'i' AND NOT (i.indisvalid AND i.indisready) AND ${OWN_SCHEMA} ORDER BY 1 LIMIT ${LISTED_MAX}`;

const POLICIES = `SELECT n.nspname AS schema, c.relname || ' ' || p.polname AS name FROM pg_policy AS p
  JOIN pg_class AS c ON c.oid = p.polrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE p.polroles <> '{0}'`;

const UNREADABLE = `SELECT n.nspname AS schema, c.relname AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND ${OWN_SCHEMA} AND ${noMember('pg_class', 'c.oid')}
    AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'))`;

const HIDDEN_SCHEMAS = `SELECT n.nspname AS name FROM pg_namespace AS n WHERE ${OWN_SCHEMA} AND NOT has_schema_privilege(n.oid, 'USAGE')`;

/** Functions of what PostgreSQL computes again for each change that it applies: checks, generated columns, triggers. */
const APPLIED = `
    UNION
    SELECT d.refobjid, CASE WHEN c.oid IS NULL THEN format_type(k.contypid, NULL) ELSE format('%I.%I', n.nspname, c.relname) END
    FROM pg_constraint AS k
    JOIN pg_depend AS d ON d.classid = 'pg_constraint'::regclass AND d.objid = k.oid AND d.refclassid = 'pg_proc'::regclass
    LEFT JOIN pg_class AS c ON c.oid = k.conrelid LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE k.contype = 'c'
    UNION
    SELECT d.refobjid, format('%I.%I', n.nspname, c.relname) FROM pg_attrdef AS e
    JOIN pg_attribute AS a ON a.attrelid = e.adrelid AND a.attnum = e.adnum AND a.attgenerated <> ''
    JOIN pg_depend AS d ON d.classid = 'pg_attrdef'::regclass AND d.objid = e.oid AND d.refclassid = 'pg_proc'::regclass
    JOIN pg_class AS c ON c.oid = e.adrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
    UNION
    SELECT t.tgfoid, format('%I.%I', n.nspname, c.relname) FROM pg_trigger AS t
    JOIN pg_class AS c ON c.oid = t.tgrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE t.tgenabled IN ('A', 'R')`;

/**
 * Functions of an index or a materialized view, also in views below it, whose bodies name other own objects without a path of
 * their own.
 * @param others more of `used`
 */
const unsafe = (others: string) => `
  WITH RECURSIVE built AS (
    SELECT c.oid, format('%I.%I', n.nspname, c.relname) AS used_by
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE (c.relkind IN ('i', 'I') OR c.relkind = 'm' AND c.relispopulated) AND ${OWN_SCHEMA}
    UNION
    SELECT v.oid, used_by FROM built JOIN pg_rewrite AS r ON r.ev_class = built.oid AND r.ev_type = '1'
    JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
    JOIN pg_class AS v ON v.oid = d.refobjid AND v.relkind = 'v'
  ), used AS (
    SELECT d.refobjid AS function, used_by FROM built
    JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = built.oid AND d.refclassid = 'pg_proc'::regclass
    UNION
    SELECT d.refobjid, used_by FROM built JOIN pg_rewrite AS r ON r.ev_class = built.oid AND r.ev_type = '1'
    JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_proc'::regclass${others}
  )
  SELECT used_by, f.oid::regprocedure::text AS function,
    'ALTER FUNCTION ' || format('%I.%I(%s)', fn.nspname, f.proname, pg_get_function_identity_arguments(f.oid)) || ' SET search_path = ' AS statement
  FROM used JOIN pg_proc AS f ON f.oid = used.function JOIN pg_namespace AS fn ON fn.oid = f.pronamespace
  JOIN pg_language AS l ON l.oid = f.prolang
  WHERE f.oid >= ${FIRST_OWN} AND l.lanname NOT IN ('internal', 'c') AND ${noMember('pg_proc', 'f.oid')}
    AND NOT EXISTS (SELECT FROM unnest(f.proconfig) AS setting WHERE setting LIKE 'search\\_path=%')
    -- A body of the SQL standard is parsed already.
    AND (f.prosrc <> '' AND f.prosrc IS NOT NULL)
    -- A body can name only what exists: another function, a relation or a type of its own.
    AND EXISTS (
      SELECT FROM (
        SELECT proname AS name, pronamespace AS namespace, oid FROM pg_proc WHERE oid >= ${FIRST_OWN}
        UNION ALL SELECT relname, relnamespace, oid FROM pg_class WHERE oid >= ${FIRST_OWN} AND relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
        UNION ALL SELECT typname, typnamespace, oid FROM pg_type WHERE oid >= ${FIRST_OWN} AND typtype IN ('d', 'e', 'r', 'm')
      ) AS own JOIN pg_namespace AS n ON n.oid = own.namespace
      WHERE own.oid <> f.oid AND ${OWN_SCHEMA} AND position(lower(own.name) IN lower(f.prosrc)) > 0
        AND position(lower(n.nspname || '.' || own.name) IN lower(f.prosrc)) = 0
    )
  ORDER BY 1, 2 LIMIT ${LISTED_MAX}`;

/** Code that runs without the schemas of its names, with what mends it. */
export interface UnsafeCode {
  used_by: string;
  function: string;
  statement: string;
}

/**
 * Reads which code runs without the schemas of its names while an index or a view is built, or a change is applied.
 * @throws an error of the source
 */
export async function readUnsafeCode(
  session: Session,
  { ownPath }: SchemaFacts,
  use: 'import' | 'follow',
): Promise<UnsafeCode[]> {
  const { rows } = await session.query<UnsafeCode>(unsafe(use === 'follow' ? APPLIED : ''));
  return rows.map(({ statement, ...found }) => ({ ...found, statement: `${statement}${ownPath}, pg_temp` }));
}

/** Reads what a dump does not say. @throws an error that is marked as one of the source */
export async function readSchemaFacts(session: Session): Promise<SchemaFacts> {
  const rowsOf = async <Row extends object>(sql: string) => (await atSource(session.query<Row>(sql))).rows;
  const named = async (sql: string) =>
    (await rowsOf<{ schema: string; name: string }>(sql)).map(({ schema, name }) => [schema, name] as const);
  const names = async (sql: string) => (await rowsOf<{ name: string }>(sql)).map(({ name }) => name);
  const [setting] = await rowsOf<{ path: string; login: string }>(SEARCH_PATH);
  const schemas = await names(OWN_SCHEMAS);
  const ownPath = (setting?.path ?? '').replaceAll('"$user"', identifier(setting?.login ?? 'public'));
  const others = schemas.length > SCHEMAS_MAX ? [] : schemas.map(identifier);
  return {
    ownPath,
    searchPath: [ownPath, ...others].filter(Boolean).join(', '),
    populated: await named(POPULATED),
    invalidIndexes: await names(INVALID),
    policies: await named(POLICIES),
    unreadable: await named(UNREADABLE),
    hiddenSchemas: await names(HIDDEN_SCHEMAS),
  };
}

/**
 * Objects that the dump neither locks nor reads: those left alone, and with chosen tables those that are neither named nor readable,
 * and schemas that cannot be used.
 */
function excludedOf(
  { unreadable, hiddenSchemas }: SchemaFacts,
  chosen: readonly Named[] | null,
  leftAlone: Pick<LeftAlone, 'schemas' | 'tables'>,
): NonNullable<DumpOptions['excluded']> {
  if (chosen === null) return leftAlone;
  const named = new Set(chosen.map((name) => JSON.stringify(name)));
  const schemas = new Set(chosen.map(([schema]) => schema));
  return {
    schemas: [...leftAlone.schemas, ...hiddenSchemas.filter((name) => !schemas.has(name))],
    tables: [...leftAlone.tables, ...unreadable.filter((name) => !named.has(JSON.stringify(name)))],
  };
}

interface Wanted extends Pick<DumpOptions, 'within' | 'snapshot' | 'signal'> {
  project_id: string;
  /** Chosen tables; null: all. */
  tables: readonly Named[] | null;
  leftAlone: LeftAlone;
  /** This server has the roles of the source. */
  sameRoles?: boolean;
}

/**
 * Dumps what is wanted of a source.
 * @returns also what of it can be made here, and the extensions of the project
 * @throws as `dumpSource`
 */
export async function dumpWanted(
  { settings, postgres }: { settings: AgentSettings; postgres: Pool },
  source: Source,
  facts: SchemaFacts,
  { project_id, tables, leftAlone, sameRoles = false, ...options }: Wanted,
): Promise<{ archive: Archive; choice: Choice; extensions: string[] }> {
  const archive = await dumpSource(settings, source, {
    ...options,
    excluded: excludedOf(facts, tables, leftAlone),
  });
  const extensions = await extensionsOfProject(postgres, project_id);
  const choice = {
    tables,
    policies: sameRoles ? [] : facts.policies,
    leftAlone: leftAlone.objects,
    isPublicOfPlatform: extensions.length > 0,
  };
  return { archive, choice, extensions };
}

/** libpq's variables for a source, which proves who it is as to the agent's own sessions. */
async function connectionOf(
  settings: Pick<AgentSettings, 'FOLLOW_CA_FILE'>,
  { host, address, port, user, password, database, isLocal, tls }: Source,
): Promise<DumpConnection> {
  if (isLocal)
    return { variables: { PGHOST: address, PGPORT: String(port), PGUSER: user, PGDATABASE: database } };
  const variables = {
    PGHOST: host,
    PGHOSTADDR: address,
    PGPORT: String(port),
    PGUSER: user,
    PGDATABASE: database,
    PGGSSENCMODE: 'disable',
    PGSSLCERTMODE: 'disable',
    PGCONNECT_TIMEOUT: '10',
  };
  if (tls !== 'channel_binding')
    return {
      variables: { ...variables, PGSSLMODE: 'verify-full' },
      password,
      authorities: (await readAuthorities(settings)).join('\n'),
    };
  const bound = { PGSSLMODE: 'require', PGCHANNELBINDING: 'require', PGREQUIREAUTH: 'scram-sha-256' };
  return { variables: { ...variables, ...bound }, password };
}

const LINE_BREAK = /[\r\n]/;
/** pg_dump tries again after a lock that a migration holds, and is not waited for longer. */
const TRIES = 3;

/**
 * Dumps the schema of a source.
 * @throws Refused, HostError INTERNAL
 */
export async function dumpSource(
  settings: AgentSettings,
  source: Source,
  options: DumpOptions,
): Promise<Archive> {
  if (LINE_BREAK.test(source.password))
    throw new Refused(
      finding('login', 'The password of the source has a line break. Set another one there.'),
    );
  const connection = await connectionOf(settings, source);
  for (let tries = 1; ; tries += 1)
    try {
      return await dumpSchema(settings, connection, options);
    } catch (error) {
      if (!(error instanceof DumpError)) throw error;
      if (error.reason !== 'refused' && error.reason !== 'disconnected')
        await endDump(settings, source, error.applicationName);
      const isLocked = /canceling statement due to (?:statement|lock) timeout|could not obtain lock/.test(
        error.message,
      );
      if (error.reason === 'stopped') throw options.signal?.reason ?? error;
      if (!isLocked || tries === TRIES) throw new Refused(findingOfDump(error, isLocked));
    }
}

const END_WITHIN_MS = 5_000;

/** A server notices only at its next message that the program has ended. */
const endDump = (settings: AgentSettings, source: Source, name: string) =>
  inSource(settings, source, { within: END_WITHIN_MS }, ({ session }) =>
    session.query(
      'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND usename = current_user',
      [name],
    ),
  );

/** @param isLocked whether a table was locked at every attempt */
function findingOfDump({ reason, message }: Pick<DumpError, 'reason' | 'message'>, isLocked: boolean) {
  if (reason === 'too_long') return finding('connection', 'The source took too long to describe its schema.');
  if (reason === 'too_large') return finding('schema', 'The schema of the source is too large.');
  if (isLocked)
    return finding(
      'connection',
      'A table of the source is locked, for instance by a migration. Try again later.',
    );
  const said = errorOfDump(message).replace(/^pg_dump: error: /, '');
  // Another attempt may succeed.
  const code = reason === 'disconnected' ? 'connection' : 'schema';
  return finding(code, `The schema of the source could not be read: ${short(said)}`);
}

/** Names of the objects that a copy does not have. */
export function leftOutFindings(
  { leftOut, unchosen }: Pick<RestorePlan, 'leftOut' | 'unchosen'>,
  { invalidIndexes }: Pick<SchemaFacts, 'invalidIndexes'>,
) {
  const warnings: [names: readonly string[], message: string][] = [
    [leftOut, 'A branch cannot have these objects, so they are left out'],
    [unchosen, 'These objects depend on what was not named or is excluded, so they are left out'],
    [invalidIndexes, 'PostgreSQL could not finish these indexes at the source, so they are left out'],
  ];
  return warnings
    .filter(([names]) => names.length > 0)
    .map(([names, message]) =>
      finding('schema', `${message}: ${listNames(names)}.`, { severity: 'warning' }),
    );
}
