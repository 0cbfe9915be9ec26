import { groupName, loginName, queryLoginName } from '../../shared/branch/login.ts';
import { followName } from '../../shared/protocol/transfer-operations.ts';
import { boundedSocket } from '../postgres/bounded-socket.ts';
import {
  identifier,
  literal,
  type OwnSession,
  openSession,
  type Pool,
  type Queryable,
  type Session,
} from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import { COMPARING, endSessions, LOADING } from '../postgres/sessions.ts';
import { HostError } from '../process/host-error.ts';
import type { Log } from '../process/log.ts';
import { pollUntil } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import { asOptions, OPTIONS } from '../rows/branch-session.ts';

/** The agent's logins and sessions in the database of a branch that follows. */

export interface FollowHost {
  settings: AgentSettings;
  postgres: Pool;
  sessions: Pool;
  log: Log;
}

export interface FollowedDatabase {
  project_id: string;
  database: string;
}

/**
 * The role that owns the subscription. The rule files admit the agent to it, over the unix socket and without a
 * password, as to every role of this form.
 */
const subscriberOf = (projectId: string) => queryLoginName(projectId);
/** The login that runs what a source has in its schema. The rule files admit the agent to it too. */
const makerOf = (projectId: string) => loginName(projectId, 'owner');

export const subscriptionOf = followName;

/** Sessions of the role: a cut-over counts several tables at a time. */
const SESSIONS = 10;

/**
 * Makes the role of the subscription. It acts for the owners of the tables, so what is replicated runs with no other
 * rights. A role that may make subscriptions can make this host connect to any address, so it loses that right again.
 * Nothing that it runs is logged or shown: the statement that makes a subscription has the source's password.
 */
export const makingSubscriber = ({ project_id, database }: FollowedDatabase, isThere: boolean): string => {
  const role = identifier(subscriberOf(project_id));
  return `${isThere ? 'ALTER' : 'CREATE'} ROLE ${role} LOGIN PASSWORD NULL CONNECTION LIMIT ${SESSIONS};
    ALTER ROLE ${role} SET track_activities = off;
    ALTER ROLE ${role} SET log_statement = 'none';
    ALTER ROLE ${role} SET log_min_error_statement = 'panic';
    ALTER ROLE ${role} SET log_min_duration_statement = -1;
    ALTER ROLE ${role} SET log_min_duration_sample = -1;
    ALTER ROLE ${role} SET log_transaction_sample_rate = 0;
    ALTER ROLE ${role} RESET log_min_messages;
    GRANT ${identifier(groupName(project_id, 'owner'))} TO ${role} WITH INHERIT TRUE, SET TRUE;
    GRANT CONNECT, CREATE ON DATABASE ${identifier(database)} TO ${role};
    GRANT pg_create_subscription TO ${role}`;
};

export const boundingSubscriber = ({ project_id, database }: FollowedDatabase): string => {
  const role = identifier(subscriberOf(project_id));
  return `REVOKE pg_create_subscription FROM ${role};
    REVOKE CREATE ON DATABASE ${identifier(database)} FROM ${role};
    ALTER ROLE ${role} RESET track_activities`;
};

/** Statement that lets the next worker name its errors in PostgreSQL's log, or the next one log as little as others. */
export const hearingSubscriber = ({ project_id }: Pick<FollowedDatabase, 'project_id'>, isHeard: boolean) =>
  `ALTER ROLE ${identifier(subscriberOf(project_id))} ${isHeard ? "SET log_min_messages = 'error'" : 'RESET log_min_messages'}`;

export async function isHeard(
  db: Queryable,
  { project_id }: Pick<FollowedDatabase, 'project_id'>,
): Promise<boolean> {
  const { rows } = await db.query(
    "SELECT FROM pg_roles WHERE rolname = $1 AND 'log_min_messages=error' = ANY (rolconfig)",
    [subscriberOf(project_id)],
  );
  return rows.length > 0;
}

const CONNECT_WITHIN_MS = 10_000;
const STATEMENT_WITHIN_MS = 30_000;

/** The session that changes the subscription, or one that only reads and that a clone ends. */
const PURPOSES = { change: LOADING, read: COMPARING } as const;

async function inSessionOf<T>(
  { settings }: Pick<FollowHost, 'settings'>,
  login: { user: string; database: string; application_name: string; query_timeout?: number },
  options: Record<string, string | number>,
  action: (session: OwnSession) => Promise<T>,
): Promise<T> {
  const session = await openSession({
    host: settings.POSTGRES_SOCKET_DIR,
    port: settings.POSTGRES_PORT,
    ...login,
    options: asOptions({
      ...OPTIONS,
      row_security: 'off',
      check_function_bodies: 'off',
      statement_timeout: STATEMENT_WITHIN_MS,
      transaction_timeout: 0,
      idle_in_transaction_session_timeout: STATEMENT_WITHIN_MS,
      ...options,
    }),
    stream: () => boundedSocket('following'),
    connectionTimeoutMillis: CONNECT_WITHIN_MS,
  });
  try {
    return await action(session);
  } finally {
    await session.end();
  }
}

/** Runs `action` as the role of the subscription, which reads catalogs only: see `withOwners`. */
export const inFollowed = <T>(
  host: Pick<FollowHost, 'settings'>,
  { project_id, database }: FollowedDatabase,
  purpose: keyof typeof PURPOSES,
  action: (session: OwnSession) => Promise<T>,
): Promise<T> =>
  inSessionOf(
    host,
    { user: subscriberOf(project_id), database, application_name: PURPOSES[purpose] },
    {},
    action,
  );

/** The session is ended when the server has not ended the statement in time: code of a tenant can lift that limit. */
const ANSWER_AFTER_MS = 5_000;

/**
 * Lets `action` open sessions with the rights of the project's owners alone, of a login that is made for it. The owner
 * of a subscription can change its address, and so could what a source has in its schema if it ran in a session of
 * that role: `SET ROLE NONE` works in a function too. A name of a table can become that of a view between two statements.
 * The caller has the lock of the branch.
 * @param within milliseconds of a statement
 */
export async function withOwners<T>(
  host: Pick<FollowHost, 'settings' | 'postgres'>,
  { project_id, database }: FollowedDatabase,
  action: (inOwners: <R>(run: (session: OwnSession) => Promise<R>) => Promise<R>) => Promise<T>,
  within = STATEMENT_WITHIN_MS,
): Promise<T> {
  const login = makerOf(project_id);
  const owners = groupName(project_id, 'owner');
  const [role, group, name] = [login, owners, database].map(identifier);
  await host.postgres.query(
    `DO $$ BEGIN
       IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = ${literal(login)}) THEN CREATE ROLE ${role}; END IF;
     END $$;
     ALTER ROLE ${role} RESET ALL;
     ALTER ROLE ${role} LOGIN PASSWORD NULL;
     GRANT ${group} TO ${role} WITH INHERIT FALSE, SET TRUE;
     GRANT CONNECT ON DATABASE ${name} TO ${role}`,
  );
  const timeouts = { statement_timeout: within, idle_in_transaction_session_timeout: within };
  try {
    return await action((run) =>
      inSessionOf(
        host,
        { user: login, database, application_name: LOADING, query_timeout: within + ANSWER_AFTER_MS },
        { ...timeouts, role: owners },
        run,
      ),
    );
  } finally {
    await endMaker(host.postgres, { project_id });
    await host.postgres.query(closingRole(login, database));
  }
}

/** `withOwners` in one session. */
export const asOwners = <T>(
  host: Pick<FollowHost, 'settings' | 'postgres'>,
  of: FollowedDatabase,
  action: (session: OwnSession) => Promise<T>,
): Promise<T> => withOwners(host, of, (inOwners) => inOwners(action));

const endMaker = (db: Queryable, { project_id }: Pick<FollowedDatabase, 'project_id'>) =>
  endSessions(db, 'FROM pg_stat_activity WHERE usename = $1', [makerOf(project_id)], ENDING);

/** Statements in a session of the role can have made objects that it owns, so `dropUnusedRoles` drops it. */
const closingRole = (login: string, database: string): string => `DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = ${literal(login)}) THEN
      ALTER ROLE ${identifier(login)} NOLOGIN PASSWORD NULL;
      REVOKE ALL ON DATABASE ${identifier(database)} FROM ${identifier(login)};
    END IF;
  END $$`;

/** Statements that take the rights of the agent's roles in the database. */
export const closingRoles = ({ project_id, database }: FollowedDatabase): string =>
  [subscriberOf(project_id), makerOf(project_id)].map((login) => closingRole(login, database)).join(';');

const CLIENTS =
  "FROM pg_stat_activity WHERE datname = $1 AND usename ~ '^u_[0-9a-f]{32}_(owner|rw|ro|query)$' AND usename <> ALL ($2)";
const ENDING = { within: 5_000 };

/** Sessions that began with other rights have to end. */
export const endClients = (db: Queryable, { project_id, database }: FollowedDatabase) =>
  endSessions(db, CLIENTS, [database, [subscriberOf(project_id), makerOf(project_id)]], ENDING);

/** Runs `action` with the locks that keep clones and other work on the branch away. @throws HostError HOST_BUSY */
export const withFollowed = <T>(
  { sessions }: Pick<FollowHost, 'sessions'>,
  of: FollowedDatabase & { branch_id: string },
  action: (session: Session) => Promise<T>,
): Promise<T> =>
  withLocks(sessions, [`clone:${of.branch_id}`, `source:${of.database}`], async (session) => {
    await endLeft(session, of);
    return action(session);
  });

/** Ends what an agent that was killed has left: its statement would take effect after ours. @throws HostError HOST_BUSY */
export async function endLeft(
  db: Queryable,
  { project_id }: Pick<FollowedDatabase, 'project_id'>,
): Promise<void> {
  const left = 'FROM pg_stat_activity WHERE usename = $1 AND application_name = $2';
  if (
    !(await endSessions(db, left, [subscriberOf(project_id), PURPOSES.change], ENDING)) ||
    !(await endMaker(db, { project_id }))
  )
    throw new HostError('HOST_BUSY', 'a session of an agent that was killed does not end');
}

const ENDED = { within: 5_000, every: 2 };

export async function untilSessionsEnded(
  db: Queryable,
  { project_id, database }: FollowedDatabase,
): Promise<void> {
  const haveEnded = async () =>
    (
      await db.query('SELECT FROM pg_stat_activity WHERE datname = $1 AND usename = $2', [
        database,
        subscriberOf(project_id),
      ])
    ).rowCount === 0;
  await pollUntil(haveEnded, ENDED);
}

/** Returns whether the role of the subscription is there. */
export async function hasSubscriber(db: Queryable, projectId: string): Promise<boolean> {
  const { rows } = await db.query('SELECT FROM pg_roles WHERE rolname = $1', [subscriberOf(projectId)]);
  return rows.length > 0;
}
