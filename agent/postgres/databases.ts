import { z } from 'zod';
import { buildDatabaseName, MANAGED_DATABASE } from '../../shared/branch/database-name.ts';
import {
  BRANCH_ROLES,
  type BranchRole,
  groupName,
  loginName,
  queryLoginName,
} from '../../shared/branch/login.ts';
import type { AgentSettings } from '../process/settings.ts';
import { identifier, literal, type Queryable } from './connect.ts';
import { sqlState } from './postgres-failure.ts';
import { DATABASES, databaseKind } from './tenant-code.ts';

/** The owner of a database: the JSON of its COMMENT, which no tenant can write. */
const Mark = z.strictObject({ branch_id: z.uuid(), project_id: z.uuid(), job_id: z.uuid() });
export type Mark = z.output<typeof Mark>;

export interface FoundDatabase {
  name: string;
  mark: Mark | null;
  /** A crash left it half-dropped. It can only be dropped again. */
  interrupted: boolean;
}

const BUILD_DATABASE = new RegExp(`^${buildDatabaseName('')}[0-9a-f]{32}$`);

/** Databases of tenants, finalized or not. */
export async function readDatabases(db: Queryable, names?: readonly string[]): Promise<FoundDatabase[]> {
  const { rows } = await db.query<{ name: string; comment: string | null; interrupted: boolean }>(
    `SELECT datname AS name, shobj_description(oid, 'pg_database') AS comment, datconnlimit = -2 AS interrupted
     FROM pg_database ${names ? 'WHERE datname = ANY ($1)' : ''} ORDER BY datname`,
    names ? [names] : [],
  );
  return rows
    .filter(({ name }) => MANAGED_DATABASE.test(name) || BUILD_DATABASE.test(name))
    .map(({ name, comment, interrupted }) => ({ name, interrupted, mark: readMark(comment) }));
}

function readMark(comment: string | null): Mark | null {
  try {
    return Mark.parse(JSON.parse(comment ?? 'null'));
  } catch {
    return null;
  }
}

export const markText = ({ branch_id, project_id, job_id }: Mark) =>
  JSON.stringify({ branch_id, project_id, job_id } satisfies Mark);

/** The project that the database of an operation belongs to, as its COMMENT. */
const WorkMark = z.object({ project_id: z.uuid() });

/** @returns null for a comment that is no mark */
export function readWorkMark(comment: string | null): z.output<typeof WorkMark> | null {
  try {
    return WorkMark.parse(JSON.parse(comment ?? 'null'));
  } catch {
    return null;
  }
}

/** Ends the database's sessions and drops it. It is no error if it does not exist. */
export async function dropDatabase(db: Queryable, name: string): Promise<void> {
  // A concurrent drop by another session makes this one fail in spite of IF EXISTS.
  await db.query(`DROP DATABASE IF EXISTS ${identifier(name)} WITH (FORCE)`).catch((error) => {
    if (sqlState(error) !== '3D000') throw error;
  });
}

/** Another operation that alters the database holds it for milliseconds. */
const LOCKED_FOR_MS = 2_000;
const DATABASE_GONE = '3D000';

/**
 * Rights on the database that the logins and the owner's group always have. The right to make temporary
 * tables of the other logins depends on the write block: `restoreLogins` grants and revokes it.
 */
const LOGIN_RIGHTS: Record<BranchRole, string> = {
  owner: 'CONNECT, TEMPORARY',
  read_write: 'CONNECT',
  read_only: 'CONNECT',
};
const QUERY_RIGHTS = 'CONNECT';
const GROUP_RIGHTS = 'CONNECT, CREATE, TEMPORARY';

/** A branch's ids and the name of its database. */
type Named = Pick<Mark, 'branch_id' | 'project_id'> & { database: string };

type Limits = Pick<AgentSettings, 'BRANCH_CONNECTIONS' | 'TEMP_FILE_LIMIT_MB'>;

/**
 * Settings of every tenant's database. Only a superuser may change them, so neither the owner nor a session
 * can undo them. PostgreSQL logs attempts to connect before it applies them.
 */
const databaseSettings = ({ TEMP_FILE_LIMIT_MB }: Limits, temporaryMb = 0): Record<string, string> => ({
  // Tenants choose the text and number of messages below FATAL.
  log_min_messages: 'fatal',
  temp_file_limit: `${Math.max(TEMP_FILE_LIMIT_MB, temporaryMb)}MB`,
});

/**
 * Statements that bound what the processes of one branch can take from other tenants.
 * @throws Error for a name that no branch has
 */
export function protectDatabase(limits: Limits, database: string): string {
  if (databaseKind(database) !== 'branch') throw new Error(`${database} is not the database of a branch`);
  return bounds(limits, database);
}

interface Work {
  project_id: string;
  /** What one session may sort in files, if that is more than usual. */
  temporaryMb?: number;
}

/**
 * Statements that close the database of an operation to all logins, name its project to the watchdogs, and bound it. They
 * run before the first session that runs code of a tenant there.
 * @throws Error for a name that no database of an operation has
 */
export function protectWork(limits: Limits, database: string, { project_id, temporaryMb }: Work): string {
  const kind = databaseKind(database);
  if (kind === null || DATABASES[kind].excess !== 'end')
    throw new Error(`${database} is not the database of an operation`);
  const name = identifier(database);
  const mark = JSON.stringify({ project_id } satisfies z.output<typeof WorkMark>);
  return [
    `REVOKE ALL ON DATABASE ${name} FROM PUBLIC`,
    `COMMENT ON DATABASE ${name} IS ${literal(mark)}`,
    bounds(limits, database, temporaryMb),
  ].join('; ');
}

function bounds(limits: Limits, database: string, temporaryMb?: number): string {
  const name = identifier(database);
  const settings = Object.entries(databaseSettings(limits, temporaryMb)).map(
    ([setting, value]) => `ALTER DATABASE ${name} SET ${setting} = ${literal(value)}`,
  );
  return [...settings, `ALTER DATABASE ${name} CONNECTION LIMIT ${connectionsOf(limits, database)}`].join(
    '; ',
  );
}

function connectionsOf(limits: Limits, database: string): number {
  const kind = databaseKind(database);
  const connections = kind && DATABASES[kind].connections;
  if (connections === null) throw new Error(`${database} accepts no session of a tenant`);
  return connections === 'BRANCH_CONNECTIONS' ? limits.BRANCH_CONNECTIONS : connections;
}

/**
 * Statements that admit a branch's logins to its database. The owner login acts as its group, which therefore
 * needs the rights itself.
 */
export function grantDatabase({ branch_id, project_id, database }: Named): string {
  const grants = [
    ...BRANCH_ROLES.map((role) => ({ rights: LOGIN_RIGHTS[role], role: loginName(branch_id, role) })),
    { rights: QUERY_RIGHTS, role: queryLoginName(branch_id) },
    { rights: GROUP_RIGHTS, role: groupName(project_id, 'owner') },
  ];
  return [...Map.groupBy(grants, ({ rights }) => rights)]
    .map(([rights, to]) => {
      const roles = to.map(({ role }) => identifier(role)).join(', ');
      return `GRANT ${rights} ON DATABASE ${identifier(database)} TO ${roles}`;
    })
    .join('; ');
}

/**
 * Closes databases with a branch's name to PUBLIC, for instance one that an operator has restored: the rules
 * admit every login to such names.
 * @returns their names
 */
export async function closeToPublic(db: Queryable): Promise<string[]> {
  const open = await readOpenToPublic(db);
  for (const name of open) await db.query(`REVOKE ALL ON DATABASE ${identifier(name)} FROM PUBLIC`);
  return open;
}

export async function readOpenToPublic(db: Queryable): Promise<string[]> {
  const { rows } = await db.query<{ name: string }>(
    "SELECT datname AS name FROM pg_database WHERE datname ~ '^db_' AND has_database_privilege('public', oid, 'CONNECT')",
  );
  return rows.map(({ name }) => name);
}

/**
 * Applies the present limits and grants to the branches that an earlier release, or an agent with other
 * settings, has made. Sessions that are open already keep their settings.
 * @throws the first failure, after all databases were tried
 */
export async function protectDatabases(db: Queryable, limits: Limits): Promise<void> {
  const finalized = (await readDatabases(db)).flatMap(({ name, mark, interrupted }) =>
    mark && !interrupted ? [{ ...mark, database: name }] : [],
  );
  const wanted = Object.entries(databaseSettings(limits)).map(([setting, value]) => `${setting}=${value}`);
  const { rows } = await db.query<{ name: string }>(
    `SELECT datname AS name
     FROM pg_database LEFT JOIN pg_db_role_setting ON setdatabase = pg_database.oid AND setrole = 0
     WHERE datname = ANY ($1) AND (datconnlimit <> $2 OR NOT coalesce(setconfig @> $3::text[], false))`,
    [finalized.map(({ database }) => database), limits.BRANCH_CONNECTIONS, wanted],
  );
  const unprotected = new Set(rows.map(({ name }) => name));
  const ungranted = await readUngranted(db, finalized);
  const failures: unknown[] = [];
  for (const branch of finalized) {
    const statements = [
      ...(unprotected.has(branch.database) ? [protectDatabase(limits, branch.database)] : []),
      ...(ungranted.has(branch.database) ? [grantDatabase(branch)] : []),
    ];
    if (statements.length === 0) continue;
    // Statements that are sent together are one transaction, to which SET LOCAL applies.
    await db.query(`SET LOCAL lock_timeout = ${LOCKED_FOR_MS}; ${statements.join('; ')}`).catch((error) => {
      if (sqlState(error) !== DATABASE_GONE) failures.push(error);
    });
  }
  if (failures.length > 0) throw failures[0];
}

/** Databases in which a login or the owner's group lacks one of its grants. */
async function readUngranted(db: Queryable, branches: readonly Named[]): Promise<Set<string>> {
  const wanted = branches.flatMap(({ branch_id, project_id, database }) => [
    ...BRANCH_ROLES.map((role) => ({
      database,
      role: loginName(branch_id, role),
      rights: LOGIN_RIGHTS[role],
    })),
    { database, role: queryLoginName(branch_id), rights: QUERY_RIGHTS },
    { database, role: groupName(project_id, 'owner'), rights: GROUP_RIGHTS },
  ]);
  const { rows } = await db.query<{ name: string }>(
    `SELECT DISTINCT datname AS name
     FROM unnest($1::text[], $2::text[], $3::text[]) AS wanted (database, role, rights)
     JOIN pg_database ON datname = database JOIN pg_roles ON rolname = role
     WHERE NOT string_to_array(rights, ', ') <@ ARRAY (
       SELECT privilege_type FROM aclexplode(datacl) WHERE grantee = pg_roles.oid
     )`,
    [
      wanted.map(({ database }) => database),
      wanted.map(({ role }) => role),
      wanted.map(({ rights }) => rights),
    ],
  );
  return new Set(rows.map(({ name }) => name));
}
