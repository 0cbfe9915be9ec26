import { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { loginName } from '../../shared/branch/login.ts';
import type { Host } from '../host.ts';
import { inTransaction, type OwnSession, openSession, type Session } from '../postgres/connect.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { GIVES_WAY } from '../postgres/source-sessions.ts';
import { HostError } from '../servers/host-error.ts';

/** A lock that another session holds is waited for no longer. Milliseconds. */
const LOCK_WITHIN_MS = 3_000;
const END_WITHIN_MS = 1_000;
/** A clone keeps new sessions out for as long as it takes. */
const CONNECT_WITHIN_MS = 3_000;

/**
 * Given as start-up options, which beat what the tenant wrote with ALTER ROLE … SET. Values are written and read
 * in one form whatever the tenant prefers, and no name is found anywhere but in pg_catalog.
 */
const OPTIONS = {
  search_path: 'pg_catalog,pg_temp',
  lock_timeout: LOCK_WITHIN_MS,
  idle_session_timeout: 0,
  client_connection_check_interval: 1_000,
  client_min_messages: 'error',
  row_security: 'on',
  DateStyle: 'ISO,YMD',
  IntervalStyle: 'postgres',
  TimeZone: 'UTC',
  extra_float_digits: 1,
  bytea_output: 'hex',
  lc_monetary: 'C',
  xmloption: 'content',
  array_nulls: 'on',
  standard_conforming_strings: 'on',
  transform_null_equals: 'off',
  quote_all_identifiers: 'off',
  // The order of rows in a table without a key is the one they are stored in: nothing may start in the middle.
  synchronize_seqscans: 'off',
  max_parallel_workers_per_gather: 0,
  jit: 'off',
};

interface Mode {
  application: string;
  /** Whether it may wait for a place. */
  waits: boolean;
  /** A statement runs no longer. Milliseconds. */
  statementWithin: number;
  /** A tenant's code can lift the limits or catch their errors; after this time the session is ended. */
  sessionWithin: number;
  settings: Record<string, string>;
}

/** What somebody waits for. */
const ASKED_FOR = {
  application: 'branchgate-rows',
  waits: true,
  statementWithin: 5_000,
  sessionWithin: 7_000,
};

/** Reading sees one moment, and can't change anything even if a view calls a function that tries. */
const READING = { default_transaction_isolation: 'repeatable read', default_transaction_read_only: 'on' };

const MODES = {
  read: { ...ASKED_FOR, settings: READING },
  // Whether it may write is for the login's own setting to say: it is off while the project is over its quota.
  change: { ...ASKED_FOR, settings: { default_transaction_isolation: 'read committed' } },
  /** Reading ahead, which nobody waits for. */
  background: {
    application: GIVES_WAY,
    waits: false,
    statementWithin: 1_000,
    sessionWithin: 1_500,
    settings: READING,
  },
} satisfies Record<string, Mode>;

const optionsOf = ({ statementWithin, sessionWithin, settings }: Mode) =>
  asOptions({
    ...OPTIONS,
    statement_timeout: statementWithin,
    idle_in_transaction_session_timeout: sessionWithin,
    transaction_timeout: sessionWithin,
    ...settings,
  });

const asOptions = (settings: Record<string, string | number>) =>
  Object.entries(settings)
    .map(([name, value]) => `-c ${name}=${String(value).replaceAll(' ', '\\ ')}`)
    .join(' ');

/** Every value as PostgreSQL writes it. */
const AS_TEXT = { getTypeParser: () => (text: string) => text };

/** Far more than an answer can have. */
const SESSION_BYTES_MAX = 16 * 1024 * 1024;
/** PostgreSQL's code for a limit of the program. */
const PROGRAM_LIMIT = '54000';

/** A tenant's code can send as much as it likes, in errors and notices, and all of it would come into our memory. */
function boundedSocket(): Socket {
  const socket = new Socket();
  socket.on('data', () => {
    if (socket.bytesRead <= SESSION_BYTES_MAX) return;
    socket.destroy(new HostError('STATEMENT_REFUSED', 'the database sent too much', PROGRAM_LIMIT));
  });
  return socket;
}

const TOOK_TOO_LONG = new Set(['57014', '55P03', '25P03', '25P04']);

interface Place {
  branch_id: string;
  database: string;
}

/**
 * Runs `action` as one transaction in a tenant's database, as the branch's own read-write login and in a session
 * of its own: one that stays would be in a clone's way, and a tenant's code may leave anything behind in it.
 * @throws HostError STATEMENT_REFUSED with PostgreSQL's words, HOST_TIMEOUT, HOST_BUSY, and what a server that
 *   is away brings
 */
export async function inBranch<T>(
  host: Host,
  { branch_id, database }: Place,
  mode: keyof typeof MODES,
  action: (session: Session) => Promise<T>,
): Promise<T> {
  const { application, waits, sessionWithin } = MODES[mode];
  const leave = await host.rows.places.enter(branch_id, waits);
  const user = loginName(branch_id, 'read_write');
  try {
    const session = await openSession({
      host: host.settings.POSTGRES_SOCKET_DIR,
      port: host.settings.POSTGRES_PORT,
      user,
      database,
      application_name: application,
      options: optionsOf(MODES[mode]),
      types: AS_TEXT,
      stream: boundedSocket,
      connectionTimeoutMillis: CONNECT_WITHIN_MS,
    });
    return await bounded(host, session, { user, within: sessionWithin }, () =>
      inTransaction(session, () => action(session)),
    );
  } finally {
    leave();
  }
}

/** Runs `action`, whose session is ended in any case: when the time is over, with what it is doing. */
async function bounded<T>(
  host: Host,
  session: OwnSession,
  { user, within }: { user: string; within: number },
  action: () => Promise<T>,
): Promise<T> {
  let expired = false;
  /** The server does it: a tenant's code goes on without noticing that nobody listens any more. */
  const terminate = async () => {
    const statement =
      'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND usename = $2';
    const terminated = host.postgres.query(statement, [backendPid(session), user]).catch(() => {});
    await Promise.race([terminated, sleep(END_WITHIN_MS)]);
    // Fails what still waits for this session, should the server not have done so.
    session.end().catch(() => {});
  };
  const watchdog = setTimeout(() => {
    expired = true;
    terminate();
  }, within);
  try {
    const result = await action();
    await session.end();
    return result;
  } catch (error) {
    await terminate();
    throw expired ? tookTooLong() : asRowError(error);
  } finally {
    clearTimeout(watchdog);
  }
}

/** Told at the login, so that no statement has to ask for it. */
const backendPid = (session: OwnSession) => (session as unknown as { processID: number }).processID;

/**
 * Gives the tenant's triggers and views the search path that they were written for, PostgreSQL's default. From here
 * on statements name every function, type and table with its schema.
 */
export const admitTenantCode = (session: Session) =>
  session.query('SET LOCAL search_path = "$user", public, pg_temp');

const tookTooLong = () => new HostError('HOST_TIMEOUT', 'the statement took too long, or waited for a lock');

/** A tenant's code can raise any SQLSTATE; one that ended the session says something about the server. */
function asRowError(error: unknown): unknown {
  const state = sqlState(error);
  if (!(error instanceof Error) || !('severity' in error) || state === undefined) return error;
  if (TOOK_TOO_LONG.has(state)) return tookTooLong();
  return error.severity === 'ERROR' ? new HostError('STATEMENT_REFUSED', error.message, state) : error;
}
