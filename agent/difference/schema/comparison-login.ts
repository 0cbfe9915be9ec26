import { randomUUID } from 'node:crypto';
import { groupName, queryLoginName } from '../../../shared/branch/login.ts';
import type { Archive } from '../../dump/archive.ts';
import { DumpError, type DumpOptions, dumpSchema } from '../../dump/pg-dump.ts';
import {
  identifier,
  inTransaction,
  type Pool,
  type Queryable,
  type Session,
} from '../../postgres/connect.ts';
import { sqlState } from '../../postgres/postgres-failure.ts';
import { COMPARING } from '../../postgres/sessions.ts';
import { HostError } from '../../process/host-error.ts';
import type { AgentSettings } from '../../process/settings.ts';
import { bounded, openComparisonSession, type RowsHost } from '../../rows/branch-session.ts';
import { EndedByCloneError, isEndedByClone } from '../ended-by-clone.ts';

/**
 * The login of one comparison of schemas. The query login of a branch cannot read a private schema, and no superuser runs
 * a dump in a tenant's database. The login has no password and acts as the owners' group, over the unix socket only.
 */
export interface ComparisonLogin {
  id: string;
  name: string;
  project_id: string;
  settings: AgentSettings;
}

/** pg_dump, the session that reads the catalogs, and those of the proof. */
const CONNECTIONS = 4;
/** The removal of unused roles leaves it alone for this time. */
const LEASE_MINUTES = 2;
/** SQLSTATE of a row of a catalog that another session has changed first: other logins get rights on the same database. */
const CHANGED_MEANWHILE = 'XX000';
const REMOVE_TRIES = 10;
/** SQLSTATE `program_limit_exceeded`. */
const PROGRAM_LIMIT = '54000';

const tooLarge = () =>
  new HostError('STATEMENT_REFUSED', 'the schema has too many objects to compare', {
    sqlstate: PROGRAM_LIMIT,
  });
const READ_TRIES = 3;

const tookTooLong = () => new HostError('TIME_LIMIT_REACHED', 'the comparison of the schemas took too long');

/**
 * Runs `action` with a login that may connect to the databases.
 * @param databases of the project, or clones of its snapshots
 * @param minutes for which `action` lasts at most
 * @param beforeMade gets the name of the login, to remove what a kill leaves of it
 */
export async function withComparisonLogin<T>(
  { settings, postgres }: { settings: AgentSettings; postgres: Pool },
  projectId: string,
  databases: readonly string[],
  action: (login: ComparisonLogin) => Promise<T>,
  minutes = LEASE_MINUTES,
  beforeMade: (name: string) => Promise<unknown> = async () => {},
): Promise<T> {
  const id = randomUUID();
  const name = queryLoginName(id);
  const login = identifier(name);
  const grants = [...new Set(databases)].map(
    (database) => `GRANT CONNECT ON DATABASE ${identifier(database)} TO ${login}`,
  );
  await beforeMade(name);
  // Statements that are sent together are one transaction.
  await postgres.query(
    `DO $$ BEGIN EXECUTE format('CREATE ROLE ${login} LOGIN CONNECTION LIMIT ${CONNECTIONS} VALID UNTIL %L', now() + interval '${minutes} minutes'); END $$;
     GRANT ${identifier(groupName(projectId, 'owner'))} TO ${login} WITH INHERIT FALSE, SET TRUE;
     ${grants.join('; ')}`,
  );
  try {
    return await action({ id, name, project_id: projectId, settings });
  } finally {
    await removeLogin(postgres, name);
  }
}

/** Ends its sessions. Whatever fails is left to the removal of unused roles. */
export async function removeLogin(db: Queryable, name: string): Promise<void> {
  const login = identifier(name);
  await db.query('SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE usename = $1', [name]);
  for (let tries = 1; tries <= REMOVE_TRIES; tries += 1)
    try {
      // The rights in a database that has another name by now go too.
      await db.query(`DROP OWNED BY ${login}; DROP ROLE ${login}`);
      return;
    } catch (error) {
      if (sqlState(error) !== CHANGED_MEANWHILE) return;
    }
}

/** Bound of the objects on each side, which are compared in a second, and of the characters of their definitions. */
const OBJECTS_MAX = 25_000;
const TEXT_MAX = 16 * 2 ** 20;

/**
 * Dumps the schema of a database. A whole dump has the bounds of a comparison of branches.
 * @throws HostError TIME_LIMIT_REACHED, HOST_BUSY, STATEMENT_REFUSED for a schema that is too large or cannot be read
 */
export async function dumpAsLogin(
  { name, project_id, settings }: Omit<ComparisonLogin, 'id'>,
  database: string,
  { isWhole = false, ...bounds }: Pick<DumpOptions, 'within' | 'signal' | 'snapshot' | 'isWhole'>,
): Promise<Archive> {
  const variables = {
    PGHOST: settings.POSTGRES_SOCKET_DIR,
    PGPORT: String(settings.POSTGRES_PORT),
    PGUSER: name,
    PGDATABASE: database,
    PGAPPNAME: COMPARING,
  };
  const role = groupName(project_id, 'owner');
  const archive = await dumpSchema(settings, { variables }, { ...bounds, role, isWhole }).catch((error) => {
    throw asRefusal(error);
  });
  const text = archive.reduce((sum, { definition }) => sum + definition.length, 0);
  if (isWhole && (archive.length > OBJECTS_MAX || text > TEXT_MAX)) throw tooLarge();
  return archive;
}

function asRefusal(error: unknown): unknown {
  if (!(error instanceof DumpError)) return error;
  if (error.reason === 'too_large') return tooLarge();
  if (error.reason === 'disconnected') return new EndedByCloneError();
  if (error.reason === 'killed') return new HostError('HOST_BUSY', error.message);
  if (error.reason !== 'refused') return tookTooLong();
  const [, message = 'pg_dump has failed'] = /error: (.*)/.exec(error.message) ?? [];
  if (/lock timeout|could not obtain lock/.test(error.message)) return tookTooLong();
  return new HostError('STATEMENT_REFUSED', `the schema cannot be read: ${message.slice(0, 500)}`, {
    sqlstate: '42501',
  });
}

/** Runs `action` in a session of the login. It is ended after `within` milliseconds. */
export async function inComparison<T>(
  host: RowsHost,
  login: ComparisonLogin,
  database: string,
  { within, options }: { within: number; options: Record<string, string | number> },
  action: (session: Session) => Promise<T>,
): Promise<T> {
  const session = await openComparisonSession(
    host,
    { user: login.name, database, project_id: login.project_id },
    options,
  );
  return bounded(host, session, () => action(session), { within });
}

/** Of a session that only reads, in one snapshot. */
const READING = {
  default_transaction_isolation: 'repeatable read',
  default_transaction_read_only: 'on',
  statement_timeout: 7_000,
  transaction_timeout: 0,
};

/**
 * Reads a database in a session of the login, in one snapshot. Begins again, after the clone, if a clone of the database has
 * ended the session.
 * @param action changes nothing, here or elsewhere
 * @throws HostError HOST_BUSY if clones have ended each attempt
 */
export async function readAsLogin<T>(
  host: RowsHost,
  login: ComparisonLogin,
  database: string,
  within: number,
  action: (session: Session) => Promise<T>,
): Promise<T> {
  for (let tries = 1; ; tries += 1)
    try {
      return await inComparison(host, login, database, { within, options: READING }, (session) =>
        inTransaction(session, () => action(session)),
      );
    } catch (error) {
      if (!isEndedByClone(error)) throw error;
      if (tries === READ_TRIES) throw new EndedByCloneError();
    }
}
