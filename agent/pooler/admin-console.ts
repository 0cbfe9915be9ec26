import { type OwnSession, openSession, type Session } from '../postgres/connect.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { HostError } from '../process/host-error.ts';
import { pollUntil } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import { type Instance, instancesNow } from './restart-state.ts';

/** PgBouncer's name for its console, and for the user that it admits there over the unix socket. */
const CONSOLE = 'pgbouncer';

export interface PoolerEntry {
  name: string;
  paused: boolean;
}

type Sockets = Pick<AgentSettings, 'POOLER_SOCKET_DIR' | 'POOLER_PORT' | 'POOLER_STANDBY_PORT'>;
type Instances = Sockets & Pick<AgentSettings, 'STATE_DIR'>;

/** The unix socket of an instance. */
export const socketOf = (settings: Sockets, instance: Instance) => ({
  host: settings.POOLER_SOCKET_DIR,
  port: instance === 'main' ? settings.POOLER_PORT : settings.POOLER_STANDBY_PORT,
});

/**
 * A console session, which the caller closes. `onLost` is called when it ends.
 * @throws HostError POOLER_UNAVAILABLE
 */
export const openAdminConsole = (settings: Sockets, instance: Instance, onLost = () => {}) =>
  openConsoleOf(settings, instance, onLost).catch(unavailable);

const openConsoleOf = (settings: Sockets, instance: Instance, onLost: () => void) =>
  openSession({ ...socketOf(settings, instance), user: CONSOLE, database: CONSOLE }, onLost);

const AWAY = new Set(['ENOENT', 'ECONNREFUSED']);

/** Whether a session failed because no PgBouncer listens at its socket. */
export const isAway = (error: unknown): boolean => AWAY.has(sqlState(error) ?? '');

/**
 * A console session of an instance that may not run; null if it does not.
 * @throws HostError POOLER_UNAVAILABLE
 */
export const openConsoleIfRunning = (
  settings: Sockets,
  instance: Instance,
  onLost = () => {},
): Promise<OwnSession | null> =>
  openConsoleOf(settings, instance, onLost).catch((error) => (isAway(error) ? null : unavailable(error)));

/** Runs `action` in a new console session of this instance. @throws HostError POOLER_UNAVAILABLE */
export const inAdminConsole = async <T>(
  settings: Sockets,
  instance: Instance,
  action: Action<T>,
): Promise<T> => run(await openAdminConsole(settings, instance), instance, action);

type Action<T> = (console: Session, instance: Instance) => Promise<T>;

async function run<T>(console: OwnSession, instance: Instance, action: Action<T>): Promise<T> {
  try {
    return await action(console, instance);
  } catch (error) {
    return unavailable(error);
  } finally {
    await console.end();
  }
}

/**
 * Runs `action` in a console session of the PgBouncer that new clients reach.
 * @throws HostError POOLER_UNAVAILABLE
 */
export const withAdminConsole = <T>(settings: Instances, action: (console: Session) => Promise<T>) =>
  inAdminConsole(settings, instancesNow(settings).newClients, action);

/**
 * Runs `action` in a console session of each PgBouncer that runs: of both during a restart. One that starts
 * later gets no client before it has read the rules again (`restart.ts`).
 * @throws HostError POOLER_UNAVAILABLE
 */
export async function withAdminConsoles<T>(settings: Instances, action: Action<T>): Promise<T[]> {
  const { newClients, other } = instancesNow(settings);
  const first = inAdminConsole(settings, newClients, action);
  if (other === null) return [await first];
  const [result, ...more] = await Promise.all([first, ifRunning(settings, other, action)]);
  return [result, ...more.flat()];
}

/** The result of `action`; none if the instance does not run, or has ended meanwhile. */
async function ifRunning<T>(settings: Sockets, instance: Instance, action: Action<T>): Promise<T[]> {
  const console = await openConsoleIfRunning(settings, instance);
  if (!console) return [];
  try {
    return [await run(console, instance, action)];
  } catch (error) {
    if (await isRunning(settings, instance)) throw error;
    return [];
  }
}

export async function isRunning(settings: Sockets, instance: Instance): Promise<boolean> {
  const console = await openConsoleIfRunning(settings, instance);
  await console?.end();
  return console !== null;
}

function unavailable(error: unknown): never {
  if (error instanceof HostError || !(error instanceof Error)) throw error;
  throw new HostError('POOLER_UNAVAILABLE', `PgBouncer: ${error.message}`);
}

/** A client of the pooler over the network. */
export interface PooledClient {
  database: string;
  /** Pointer, address and port together identify a client. */
  pointer: string;
  address: string;
  port: number;
}

interface SocketRow {
  type: 'C' | 'S';
  state: string;
  database: string;
  ptr: string;
  addr: string;
  port: number;
}

/** Clients that are logged in. */
export const showClients = (console: Session) => readClients(console, 'SHOW CLIENTS');

/** How many clients are connected; far less work for PgBouncer than to list them. */
export const countClients = (console: Session) => countOf(console, 'used_clients');

async function countOf(console: Session, wanted: 'used_clients' | 'databases'): Promise<number> {
  const { rows } = await console.query<{ list: string; items: number }>('SHOW LISTS');
  return Number(rows.find(({ list }) => list === wanted)?.items ?? 0);
}

/** Clients that are logged in, and those that are logging in. */
export const showClientsAndLogins = (console: Session) => readClients(console, 'SHOW SOCKETS');

/** The databases that clients use or are logging in to, those of the agent over the unix socket included. */
export async function showConnected(console: Session): Promise<string[]> {
  const { rows } = await console.query<SocketRow>('SHOW SOCKETS');
  return [...new Set(rows.filter(({ type }) => type === 'C').map(({ database }) => database))];
}

/** The databases that clients are logging in to. */
async function showLogins(console: Session): Promise<string[]> {
  const { rows } = await console.query<SocketRow>('SHOW SOCKETS');
  return rows.filter(({ state }) => state === 'cl_login').map(({ database }) => database);
}

async function readClients(console: Session, statement: string): Promise<PooledClient[]> {
  const { rows } = await console.query<SocketRow>(statement);
  return rows
    .filter(({ type, addr }) => type === 'C' && addr !== 'unix')
    .map(({ database, ptr, addr, port }) => ({
      database,
      pointer: ptr,
      address: addr,
      port: Number(port),
    }));
}

/** Server connections in which a client's transaction runs. */
export async function showActiveServers(console: Session): Promise<number> {
  const { rows } = await console.query<{ sv_active: number }>('SHOW POOLS');
  return rows.reduce((sum, { sv_active }) => sum + Number(sv_active), 0);
}

/**
 * Numbers of one database: clients that wait for a server connection, and server connections that are logging
 * in.
 */
export async function showDemand(
  console: Session,
  database: string,
): Promise<{ waiting: number; loggingIn: number }> {
  const { rows } = await console.query<{ database: string; cl_waiting: number; sv_login: number }>(
    'SHOW POOLS',
  );
  const pools = rows.filter((pool) => pool.database === database);
  return {
    waiting: pools.reduce((sum, { cl_waiting }) => sum + Number(cl_waiting), 0),
    loggingIn: pools.reduce((sum, { sv_login }) => sum + Number(sv_login), 0),
  };
}

/** Seconds that the first waiting client of each database has waited for a server connection, by database. */
export async function showWaits(console: Session): Promise<Map<string, number>> {
  const { rows } = await console.query<{ database: string; maxwait: number; maxwait_us: number }>(
    'SHOW POOLS',
  );
  const waits = new Map<string, number>();
  for (const { database, maxwait, maxwait_us } of rows) {
    const seconds = Number(maxwait) + Number(maxwait_us) / 1_000_000;
    waits.set(database, Math.max(waits.get(database) ?? 0, seconds));
  }
  return waits;
}

/** Bytes of the caches that the pooler has allocated; it never gives any back. */
export async function showMemory(console: Session): Promise<number> {
  const { rows } = await console.query<{ memtotal: string }>('SHOW MEM');
  return rows.reduce((sum, { memtotal }) => sum + Number(memtotal), 0);
}

/** The same of all PgBouncers that run. */
export const readMemory = async (settings: Instances): Promise<number> =>
  (await withAdminConsoles(settings, showMemory)).reduce((sum, bytes) => sum + bytes, 0);

/** The databases that the pooler serves, except its console. */
export async function showDatabases(console: Session): Promise<PoolerEntry[]> {
  const { rows } = await console.query<{ name: string; paused: number }>('SHOW DATABASES');
  return rows
    .filter(({ name }) => name !== CONSOLE)
    .map(({ name, paused }) => ({ name, paused: Number(paused) === 1 }));
}

/** PgBouncer's version, such as `1.25.2`. */
export async function readPoolerVersion(console: Session): Promise<string> {
  const { rows } = await console.query<{ version: string }>('SHOW VERSION');
  return (rows[0]?.version ?? '').replace(/^PgBouncer /, '');
}

/** Whether PgBouncer limits the clients of one database (`max_db_client_connections`). */
export const countsClients = (version: string) => atLeast(version, [1, 24, 0]);

/** Whether a version such as `1.25.2` is `wanted` or later. */
export function atLeast(version: string, wanted: readonly number[]): boolean {
  const parts = partsOf(version);
  const differing = wanted.findIndex((number, index) => (parts[index] ?? 0) !== number);
  return differing === -1 || (parts[differing] ?? 0) > (wanted[differing] ?? 0);
}

/** The oldest of these versions. */
export const oldest = (versions: readonly string[]) =>
  versions.reduce((one, other) => (atLeast(one, partsOf(other)) ? other : one));

const partsOf = (version: string) => version.split('.').map((part) => Number.parseInt(part, 10));

/** A login takes some round trips. One that stays open for longer than this is ended. */
const LOG_IN_WITHIN_SECONDS = 2;
/** PgBouncer applies the timeout three times a second. */
const ENDED_WITHIN_MS = 5_000;
const POLL_EVERY_MS = 10;

/**
 * Waits until no client is logging in to these databases, and ends logins that take too long. It is called
 * after the rules refuse new clients and before the databases leave the pooler: PgBouncer (1.18 as well as
 * 1.25) frees their pools, but a login under way continues with the freed pool, which may be another tenant's
 * by then. A slow login to another database of this host may be ended as well. The next RELOAD restores the
 * timeout.
 * @throws HostError RULES_NOT_APPLIED
 */
export async function endLogins(console: Session, databases: ReadonlySet<string>): Promise<void> {
  const haveEnded = async () => {
    if (!(await showLogins(console)).some((database) => databases.has(database))) return true;
    // Repeated at each check, because another change of the rules may have reloaded PgBouncer meanwhile.
    await console.query(`SET client_login_timeout = ${LOG_IN_WITHIN_SECONDS}`);
    return false;
  };
  if (!(await pollUntil(haveEnded, { within: ENDED_WITHIN_MS, every: POLL_EVERY_MS })))
    throw new HostError('RULES_NOT_APPLIED', 'PgBouncer does not end the logins under way');
}

const RELOAD = { within: 5_000, every: 1 };

/**
 * @param databases that the instance has to serve afterwards
 * @param before that it serves now; null: unknown. Entries that only come, or only go, are counted, because a list of a
 *   thousand takes PgBouncer and the agent tens of milliseconds
 */
export async function reloadAdminConsole(
  console: Session,
  databases: ReadonlySet<string>,
  before: ReadonlySet<string> | null,
): Promise<void> {
  await console.query('RELOAD');
  const isCounted = before !== null && (isWithin(databases, before) || isWithin(before, databases));
  await waitUntilApplied('PgBouncer', async () => {
    // The console is a database too.
    if (isCounted) return (await countOf(console, 'databases')) === databases.size + 1;
    const served = await showDatabases(console);
    return served.length === databases.size && served.every(({ name }) => databases.has(name));
  });
}

const isWithin = (some: ReadonlySet<string>, all: ReadonlySet<string>) =>
  some.size <= all.size && [...some].every((one) => all.has(one));

export async function waitUntilApplied(server: string, isApplied: () => Promise<boolean>) {
  if (!(await pollUntil(isApplied, RELOAD)))
    throw new HostError('RULES_NOT_APPLIED', `${server} still uses its old rules after a reload`);
}
