import type { Duplex } from 'node:stream';
import pg from 'pg';
import type { AgentSettings } from '../process/settings.ts';

/** One session with PostgreSQL. */
export type Session = pg.ClientBase;
/** A session that belongs to one module, which closes it. */
export type OwnSession = pg.Client;
export type Pool = pg.Pool;
/** Runs single statements: a pool or a session. */
export type Queryable = Pick<pg.ClientBase, 'query'>;

/** Leaves every value as the text that PostgreSQL sent. */
export const AS_TEXT = { getTypeParser: () => (text: string) => text };

/** Parses values as the driver does by default. */
export const AS_VALUES = pg.types;

/** Of an open session. PostgreSQL sends it at login, so no statement is needed; the driver's types leave it out. */
export const backendPid = (session: Session): number =>
  (session as unknown as { processID: number }).processID;

/** A server that accepts no session within this time is treated as away. */
const CONNECT_WITHIN_MS = 10_000;

/**
 * The platform superuser over PostgreSQL's unix socket (`peer`, no password).
 * The server neither shows its statements (`pg_stat_activity`) nor logs those that fail, because they may contain a SCRAM
 * verifier. No commit waits for a standby. Messages are in English, which `postgres-failure.ts` reads.
 */
const asPlatform = (settings: AgentSettings, database: string): pg.ClientConfig => ({
  host: settings.POSTGRES_SOCKET_DIR,
  port: settings.POSTGRES_PORT,
  user: PLATFORM_ROLE,
  database,
  application_name: 'branchgate-agent',
  options:
    '-c track_activities=off -c log_statement=none -c log_min_error_statement=panic -c lc_messages=C -c search_path=public,pg_temp -c synchronous_commit=local',
  connectionTimeoutMillis: CONNECT_WITHIN_MS,
});

/** Statements that a session keeps prepared at most. The texts with parameters are constants, and fewer. */
const PREPARED_MAX = 200;

/**
 * Prepares each statement with parameters at its first use: PostgreSQL parses it once per session then, and
 * usually plans it a few times only.
 */
class PreparingClient extends pg.Client {
  readonly #names = new Map<string, string>();

  override query = ((statement: unknown, values?: unknown, ...more: unknown[]): unknown => {
    const run = super.query as (...parameters: unknown[]) => unknown;
    if (typeof statement !== 'string' || !Array.isArray(values))
      return run.call(this, statement, values, ...more);
    return run.call(this, { name: this.#nameOf(statement), text: statement, values }, ...more);
  }) as pg.Client['query'];

  /** Undefined leaves the statement unprepared. */
  #nameOf(text: string): string | undefined {
    const known = this.#names.get(text);
    if (known !== undefined || this.#names.size === PREPARED_MAX) return known;
    const name = `statement_${this.#names.size}`;
    this.#names.set(text, name);
    return name;
  }
}

/**
 * A session that was not used for so long is closed. Another one costs processor time, and its first
 * statements too.
 */
const IDLE_FOR_MS = 60_000;

/**
 * An operation reads a few rows of tables that grow with the host. Each of its statements finds them by an index,
 * and joins by an index, whatever the statistics say: a plan that was made when a table was small, or from statistics
 * of that time, reads all of it. What reads the whole host has indexes too, and is only a little slower by them.
 */
const PLANS = ['enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'jit']
  .map((setting) => ` -c ${setting}=off`)
  .join('');

/**
 * Up to `max` sessions in the agent's own database. One stays open, so that blocking password guesses never
 * waits for a login.
 */
export function openPool(settings: AgentSettings, max: number): Pool {
  const config = asPlatform(settings, PLATFORM_ROLE);
  const pool = new pg.Pool({
    ...config,
    options: config.options + PLANS,
    Client: PreparingClient,
    max,
    min: 1,
    idleTimeoutMillis: IDLE_FOR_MS,
  });
  // A lost session fails the statement that uses it. Without listeners the error would also end the process.
  pool.on('error', () => {});
  pool.on('connect', (client) => client.on('error', () => {}));
  return pool;
}

/** Start-up options, which override settings that a tenant gave its database (`branch-settings.ts`). */
const OWN_SETTINGS = [
  'statement_timeout=0',
  'lock_timeout=0',
  'idle_in_transaction_session_timeout=0',
  'default_transaction_isolation=read\\ committed',
  'client_min_messages=notice',
  'DateStyle=ISO',
  'IntervalStyle=postgres',
  'TimeZone=UTC',
]
  .map((setting) => ` -c ${setting}`)
  .join('');

/** Runs `action` in a new session in `database`. */
export function inDatabase<T>(
  settings: AgentSettings,
  database: string,
  action: (session: Session) => Promise<T>,
): Promise<T> {
  const config = asPlatform(settings, database);
  return inSession({ ...config, options: config.options + OWN_SETTINGS }, action);
}

/** Ends the session without a wait for what was sent: its statements fail. */
export function breakOff(session: OwnSession): void {
  session.end().catch(() => {});
  // The driver's types leave it out. A session with `pipeline` would wait for its last answer.
  (session as unknown as { connection: { stream: Duplex } }).connection.stream.destroy();
}

/** Runs `action` in a new session, which is closed in every case. */
export async function inSession<T>(
  config: pg.ClientConfig,
  action: (session: Session) => Promise<T>,
): Promise<T> {
  const session = await openSession(config);
  try {
    return await action(session);
  } finally {
    await session.end();
  }
}

/** A session that the caller closes. `onLost` is called when it ends, also by the server. */
export async function openSession(config: pg.ClientConfig, onLost = () => {}): Promise<OwnSession> {
  const session = new pg.Client({ connectionTimeoutMillis: CONNECT_WITHIN_MS, ...config });
  session.on('error', () => {});
  session.on('end', onLost);
  await session.connect();
  return session;
}

export const openPlatformSession = (settings: AgentSettings, onLost: () => void) =>
  openSession(asPlatform(settings, PLATFORM_ROLE), onLost);

/** The snapshot of the session's transaction, for others to read in. */
export async function exportSnapshot(session: Session): Promise<string> {
  const { rows } = await session.query<{ id: string }>('SELECT pg_catalog.pg_export_snapshot() AS id');
  return rows[0]?.id ?? '';
}

/**
 * Runs `action` as one transaction of the session. One that sends statements before the answers of those before
 * (`pipeline`) saves the wait for its beginning.
 * @param options.end returns what follows a success; null: `action` has sent it
 * @param options.onBegun called once the transaction has begun
 */
export async function inTransaction<T>(
  session: Session,
  action: () => Promise<T>,
  {
    end = () => 'COMMIT',
    onBegun = () => {},
  }: { end?: () => 'COMMIT' | 'ROLLBACK' | null; onBegun?: () => void } = {},
): Promise<T> {
  const begun = session.query('BEGIN').then(onBegun);
  if (!(session instanceof pg.Client && session.pipeline)) await begun;
  try {
    const [result] = await Promise.all([action(), begun]);
    const last = end();
    if (last !== null) await session.query(last);
    return result;
  } catch (error) {
    await session.query('ROLLBACK').catch(() => {});
    throw error;
  }
}

export const identifier = (name: string) => pg.escapeIdentifier(name);
export const literal = (text: string) => pg.escapeLiteral(text);

/** The platform's superuser in PostgreSQL, and the database that contains the agent's tables. */
export const PLATFORM_ROLE = 'branchgate';

/**
 * The address of loopback from which the agent logs in to PostgreSQL for a client over WebSocket, by SCRAM. The unix socket
 * would admit the agent to every login without a password.
 */
export const AGENT_ADDRESS = '127.83.81.76';
