import { setTimeout as sleep } from 'node:timers/promises';
import { projectDatabaseName } from '../../shared/branch/database-name.ts';
import { groupName, loginName, queryLoginName } from '../../shared/branch/login.ts';
import { boundedSocket } from '../postgres/bounded-socket.ts';
import {
  AS_TEXT,
  backendPid,
  breakOff,
  inTransaction,
  type OwnSession,
  openSession,
  type Pool,
  type Session,
} from '../postgres/connect.ts';
import { asHostError, sqlState } from '../postgres/postgres-failure.ts';
import { BROWSING, CHANGING_SCHEMA, COMPARING, LOADING } from '../postgres/sessions.ts';
import { HostError } from '../process/host-error.ts';
import type { AgentSettings } from '../process/settings.ts';
import type { KeptSessions, ReusableSession } from './kept-sessions.ts';
import type { PageMarks } from './pages.ts';
import type { RowTurns } from './row-turns.ts';

/** What it takes to run statements in the databases of branches. */
export interface RowsHost {
  settings: AgentSettings;
  /** For short statements. */
  postgres: Pool;
  /** What outlives an operation. */
  rows: { turns: RowTurns; scriptTurns: RowTurns; marks: PageMarks; kept: KeptSessions };
}

/** Longest wait for a lock that another session holds. Milliseconds. */
const LOCK_WITHIN_MS = 3_000;
/** A statement runs no longer. Milliseconds. */
const STATEMENT_WITHIN_MS = 5_000;
/**
 * The session is ended after this time, because a tenant's code can lift the limits or catch their errors.
 */
const SESSION_WITHIN_MS = 7_000;
const END_WITHIN_MS = 1_000;
/**
 * A clone of the database delays new sessions until it is complete. Together with the session it is within
 * the deadline.
 */
const CONNECT_WITHIN_MS = 5_000;
/** The same for statements that a client may change something with. Milliseconds. */
const SCRIPT_WITHIN_MS = 30_000;
const SCRIPT_SESSION_WITHIN_MS = 32_000;
/** The server ends a session that waits for the next page for longer, if the agent does not. Milliseconds. */
const WAITING_WITHIN_MS = 10_000;

/** One text for a value, on every server. */
export const VALUE_FORM = {
  DateStyle: 'ISO,YMD',
  IntervalStyle: 'postgres',
  TimeZone: 'UTC',
  extra_float_digits: 1,
  bytea_output: 'hex',
  lc_monetary: 'C',
};

/**
 * Start-up options, which override settings that the tenant made with ALTER ROLE … SET. Values are read and
 * written in one format in every branch, and names are resolved in pg_catalog only.
 */
export const OPTIONS = {
  search_path: 'pg_catalog,pg_temp',
  // A library that does not exist would prevent the login.
  local_preload_libraries: '',
  lock_timeout: LOCK_WITHIN_MS,
  statement_timeout: STATEMENT_WITHIN_MS,
  idle_in_transaction_session_timeout: SESSION_WITHIN_MS,
  transaction_timeout: SESSION_WITHIN_MS,
  idle_session_timeout: 0,
  client_connection_check_interval: 1_000,
  client_min_messages: 'error',
  row_security: 'on',
  ...VALUE_FORM,
  xmloption: 'content',
  array_nulls: 'on',
  standard_conforming_strings: 'on',
  transform_null_equals: 'off',
  quote_all_identifiers: 'off',
  // Pages of a table without a key are in storage order, so no scan may start in the middle.
  synchronize_seqscans: 'off',
  max_parallel_workers_per_gather: 0,
  jit: 'off',
};

export const asOptions = (settings: Record<string, string | number>) =>
  Object.entries(settings)
    .map(([name, value]) => `-c ${name}=${String(value).replaceAll(' ', '\\ ')}`)
    .join(' ');

// One snapshot. It changes nothing even if a view calls a function that tries.
const READING = asOptions({
  ...OPTIONS,
  default_transaction_isolation: 'repeatable read',
  default_transaction_read_only: 'on',
  idle_session_timeout: WAITING_WITHIN_MS,
});
// Says nothing about read-only: the login's own setting does, while the project is over its quota.
const CHANGING = asOptions({ ...OPTIONS, default_transaction_isolation: 'read committed' });

const SCRIPT = {
  ...OPTIONS,
  default_transaction_isolation: 'read committed',
  statement_timeout: SCRIPT_WITHIN_MS,
  idle_in_transaction_session_timeout: SCRIPT_SESSION_WITHIN_MS,
  transaction_timeout: SCRIPT_SESSION_WITHIN_MS,
};

interface Mode {
  login: (branchId: string) => string;
  options: (branch: BranchDatabase) => string;
  /** How the transaction ends, unless `action` says otherwise. */
  end: 'COMMIT' | 'ROLLBACK';
  /** Its session is ended after this time. Milliseconds. */
  within: number;
}

const readWriteLogin = (id: string) => loginName(id, 'read_write');

/**
 * Login and start-up options by what the session is for. What a client's own statement does besides reading is
 * undone: it would notify the listeners of applications. The owner login acts only as its group, whose objects
 * other branches of the project can own too.
 */
const MODES = {
  read: { login: readWriteLogin, options: () => READING, end: 'COMMIT', within: SESSION_WITHIN_MS },
  change: { login: readWriteLogin, options: () => CHANGING, end: 'COMMIT', within: SESSION_WITHIN_MS },
  query: { login: queryLoginName, options: () => READING, end: 'ROLLBACK', within: SESSION_WITHIN_MS },
  script: {
    login: readWriteLogin,
    options: () => asOptions(SCRIPT),
    end: 'COMMIT',
    within: SCRIPT_SESSION_WITHIN_MS,
  },
  owner_script: {
    login: (id) => loginName(id, 'owner'),
    options: ({ project_id = '' }) => asOptions({ ...SCRIPT, role: groupName(project_id, 'owner') }),
    end: 'COMMIT',
    within: SCRIPT_SESSION_WITHIN_MS,
  },
} as const satisfies Record<string, Mode>;

export type SessionMode = keyof typeof MODES;

const TOOK_TOO_LONG = new Set(['57014', '55P03', '25P03', '25P04']);

export interface BranchDatabase {
  branch_id: string;
  database: string;
  /** Only for the owner login. */
  project_id?: string;
  /** The tenant of a copy, which is no branch: its statements take the turns of that tenant. */
  tenant?: string;
}

/** The end of a transaction, if `action` decides it. */
export interface Transaction {
  /** It is undone. */
  undo: () => void;
  /** Sends the end after the last statement, without a wait for its answer. Only of one that reads. */
  commit: () => Promise<void>;
}

/**
 * Runs `action` as one transaction in a tenant's database, as the login of the mode. What reads the branch's
 * tables uses the session of the previous such operation if it waits; a change and a client's statement have
 * one each.
 * @throws HostError STATEMENT_REFUSED with PostgreSQL's message, TIME_LIMIT_REACHED, HOST_BUSY, PROJECT_BUSY
 * @throws Error of the connection when the server is away
 */
export async function inBranch<T>(
  host: RowsHost,
  branch: BranchDatabase,
  mode: SessionMode,
  action: (session: Session, transaction: Transaction) => Promise<T>,
): Promise<T> {
  const { branch_id } = branch;
  const leave = await enterTurn(host, branch, mode);
  const user = MODES[mode].login(branch_id);
  const { kept } = host.rows;
  const isReusable = mode === 'read';
  let hasBegun = false;
  let end: 'COMMIT' | 'ROLLBACK' | null = MODES[mode].end;
  const undo = () => {
    end = 'ROLLBACK';
  };
  const run = (opened: ReusableSession) => {
    const { session } = opened;
    const onDone = async () => (isReusable ? kept.put(user, opened) : session.end());
    const commit = async () => {
      end = null;
      await session.query('COMMIT');
    };
    const transact = (onEnd: () => void) =>
      inTransaction(
        session,
        async () => {
          const result = await action(session, { undo, commit });
          onEnd();
          return result;
        },
        {
          end: () => end,
          onBegun: () => {
            hasBegun = true;
          },
        },
      );
    return bounded(host, session, transact, { onDone, within: MODES[mode].within });
  };
  /**
   * The server may have ended a session that waited, for instance for a clone. Only a transaction that has
   * not begun is repeated: a tenant's view can end its own session, and would run twice.
   */
  const unlessBegun = (error: unknown) => {
    if (hasBegun || error instanceof HostError) throw error;
    return null;
  };
  try {
    const waiting = isReusable ? await kept.take(user) : null;
    const done = waiting && (await run(waiting).then((result) => ({ result }), unlessBegun));
    return done ? done.result : await run(await openInBranch(host, branch, mode));
  } finally {
    leave();
  }
}

/** What takes long has turns of its own, of which all projects of a tenant have some together. */
async function enterTurn(
  { rows, postgres }: RowsHost,
  { branch_id, database, tenant }: BranchDatabase,
  mode: SessionMode,
): Promise<() => void> {
  const project = tenant ?? projectDatabaseName(database);
  if (MODES[mode].within === SESSION_WITHIN_MS) return rows.turns.enter(branch_id, project);
  if (tenant !== undefined) return rows.scriptTurns.enter(branch_id, tenant);
  const { rows: found } = await postgres.query<{ tenant: string | null }>(
    'SELECT tenant FROM project JOIN branch USING (project_id) WHERE branch_id = $1',
    [branch_id],
  );
  return rows.scriptTurns.enter(branch_id, found[0]?.tenant ?? project);
}

async function openInBranch(
  { settings }: RowsHost,
  branch: BranchDatabase,
  mode: SessionMode,
): Promise<ReusableSession> {
  const { branch_id, database } = branch;
  const config = {
    host: settings.POSTGRES_SOCKET_DIR,
    port: settings.POSTGRES_PORT,
    database,
    application_name: BROWSING,
    options: MODES[mode].options(branch),
    types: AS_TEXT,
    // A change has to know how its commit ended, and a client's statement what the one before has done.
    pipeline: mode === 'read',
    stream: () => boundedSocket(mode === 'read' ? 'page' : 'statement'),
    connectionTimeoutMillis: CONNECT_WITHIN_MS,
  };
  const state = { openedAt: performance.now(), isLost: false };
  const onLost = () => {
    state.isLost = true;
  };
  const session =
    mode === 'query'
      ? await openQuerySession(branch_id, config, onLost)
      : await openAs(MODES[mode].login(branch_id), config, onLost);
  const project = projectDatabaseName(database);
  return Object.assign(state, { session, pid: backendPid(session), project });
}

type SessionConfig = Parameters<typeof openSession>[0];

/** SQLSTATE `invalid_authorization_specification`. */
const NOT_ADMITTED = '28000';

/**
 * Opens a session as the branch's query login. A host whose `pg_hba.conf` or `pg_ident.conf` is of an earlier
 * release does not admit the agent to it, which `doctor` reports. Until they are replaced, the read-only login
 * reads.
 * @throws HostError LOGIN_REFUSED
 */
export async function openQuerySession(
  branchId: string,
  config: SessionConfig,
  onLost?: () => void,
): Promise<OwnSession> {
  try {
    return await openAs(queryLoginName(branchId), config, onLost);
  } catch (error) {
    if (sqlState(error) !== NOT_ADMITTED) throw error;
    return openAs(loginName(branchId, 'read_only'), config, onLost);
  }
}

/**
 * Opens a session that acts as the owners of the project's objects and has no limit of time, to load what is
 * copied. The caller ends it.
 * @param user a login of that group
 * @throws HostError LOGIN_REFUSED
 */
export const openLoadSession = (
  { settings }: Pick<RowsHost, 'settings'>,
  { user, database, project_id }: { user: string; database: string; project_id: string },
) =>
  openAs(user, {
    host: settings.POSTGRES_SOCKET_DIR,
    port: settings.POSTGRES_PORT,
    database,
    application_name: LOADING,
    options: asOptions({
      ...SCRIPT,
      role: groupName(project_id, 'owner'),
      // An error instead of a policy that hides rows.
      row_security: 'off',
      check_function_bodies: 'off',
      statement_timeout: 0,
      lock_timeout: 0,
      transaction_timeout: 0,
      idle_in_transaction_session_timeout: 0,
      maintenance_work_mem: '64MB',
    }),
    types: AS_TEXT,
    stream: () => boundedSocket('load'),
    connectionTimeoutMillis: CONNECT_WITHIN_MS,
  });

/**
 * Opens a session that acts as the owners of the project's objects and reads catalogs, or tries statements in a scratch
 * database. The caller ends it.
 * @param user a login of that group
 * @throws HostError LOGIN_REFUSED
 */
export const openComparisonSession = (
  host: Pick<RowsHost, 'settings'>,
  owner: AsOwners,
  options: Record<string, string | number>,
) =>
  openAsOwners(host, owner, {
    application_name: COMPARING,
    kind: 'comparison',
    options: { ...OPTIONS, ...options },
  });

interface AsOwners {
  user: string;
  database: string;
  project_id: string;
}

const openAsOwners = (
  { settings }: Pick<RowsHost, 'settings'>,
  { user, database, project_id }: AsOwners,
  {
    application_name,
    kind,
    options,
  }: {
    application_name: string;
    kind: 'comparison' | 'change';
    options: Record<string, string | number>;
  },
) =>
  openAs(user, {
    host: settings.POSTGRES_SOCKET_DIR,
    port: settings.POSTGRES_PORT,
    database,
    application_name,
    options: asOptions({ ...options, role: groupName(project_id, 'owner') }),
    types: AS_TEXT,
    stream: () => boundedSocket(kind),
    connectionTimeoutMillis: CONNECT_WITHIN_MS,
  });

/**
 * Opens a session that acts as the owners of the project's objects, with the settings that the database gives every
 * client. The caller ends it.
 * @param user a login of that group
 * @param options limits of time
 * @throws HostError LOGIN_REFUSED
 */
export const openChangeSession = (
  host: Pick<RowsHost, 'settings'>,
  owner: AsOwners,
  options: Record<string, string | number>,
) =>
  openAsOwners(host, owner, {
    application_name: CHANGING_SCHEMA,
    kind: 'change',
    options: {
      local_preload_libraries: '',
      idle_in_transaction_session_timeout: SCRIPT_SESSION_WITHIN_MS,
      client_connection_check_interval: 1_000,
      client_min_messages: 'error',
      ...options,
    },
  });

/** @throws HostError LOGIN_REFUSED for what is wrong with the login, not with the server */
async function openAs(user: string, config: SessionConfig, onLost?: () => void): Promise<OwnSession> {
  try {
    return await openSession({ ...config, user }, onLost);
  } catch (error) {
    const sqlstate = sqlState(error);
    if (!(error instanceof Error) || sqlstate === undefined || asHostError(error) !== error) throw error;
    throw new HostError('LOGIN_REFUSED', error.message, { sqlstate });
  }
}

/**
 * Runs `action` and ends its session, after the time limit also in the middle of a statement.
 * @param action calls its parameter when only the end of its transaction is left: if that takes too long,
 *   nobody knows whether it was committed
 * @param options.onDone what is done with the session after a success, instead of ending it
 * @throws HostError STATEMENT_REFUSED, TIME_LIMIT_REACHED, HOST_TIMEOUT
 */
export async function bounded<T>(
  host: RowsHost,
  session: OwnSession,
  action: (onEnd: () => void) => Promise<T>,
  {
    within = SESSION_WITHIN_MS,
    signal,
    onDone = () => session.end(),
  }: { within?: number; signal?: AbortSignal | undefined; onDone?: () => Promise<void> } = {},
): Promise<T> {
  let expired = false;
  let isEnding = false;
  /** The server ends it, because a tenant's code does not notice that the client has disconnected. */
  const terminate = async () => {
    const statement =
      'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND usename = $2';
    const terminated = host.postgres.query(statement, [backendPid(session), session.user]).catch(() => {});
    await Promise.race([terminated, sleep(END_WITHIN_MS)]);
    // Rejects pending queries if the server did not end the session.
    breakOff(session);
  };
  const expire = () => {
    expired = true;
    terminate();
  };
  const watchdog = setTimeout(expire, within);
  signal?.addEventListener('abort', expire, { once: true });
  try {
    if (signal?.aborted) expired = true;
    signal?.throwIfAborted();
    const result = await action(() => {
      isEnding = true;
    });
    await onDone();
    return result;
  } catch (error) {
    await terminate();
    if (expired && isEnding)
      throw new HostError('HOST_TIMEOUT', 'it is unknown whether the transaction was committed');
    throw expired ? tookTooLong() : asRowError(error);
  } finally {
    clearTimeout(watchdog);
    signal?.removeEventListener('abort', expire);
  }
}

/** SQL of the function that `admitTenantCode` calls. */
export const ADMIT_TENANT_CODE = `pg_catalog.set_config('search_path', '"$user", public, pg_temp', true)`;

/**
 * Sets PostgreSQL's default search path, for which the tenant's triggers and views were written. After this
 * call, statements qualify every function, type and table with its schema. A query takes the snapshot of the
 * transaction, which `SET` does not: until then a client's `SET TRANSACTION READ WRITE` would be in effect.
 */
export const admitTenantCode = (session: Session) => session.query(`SELECT ${ADMIT_TENANT_CODE}`);

const tookTooLong = () =>
  new HostError('TIME_LIMIT_REACHED', 'the statement took too long, or waited for a lock');

/**
 * A tenant's code can raise any SQLSTATE as an ERROR, so only errors that end the session describe the
 * server.
 */
function asRowError(error: unknown): unknown {
  const state = sqlState(error);
  if (!(error instanceof Error) || !('severity' in error) || state === undefined) return error;
  if (TOOK_TOO_LONG.has(state)) return tookTooLong();
  if (error.severity !== 'ERROR') return error;
  return new HostError('STATEMENT_REFUSED', error.message, {
    sqlstate: state,
    change: (error as { change?: number }).change,
    statement: (error as { statement?: number }).statement,
  });
}
