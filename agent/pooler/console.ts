import { openSession, type Session } from '../postgres/connect.ts';
import { HostError } from '../servers/host-error.ts';
import type { AgentSettings } from '../settings.ts';

/** PgBouncer's name for its console, and for the user that it admits there over the unix socket. */
const CONSOLE = 'pgbouncer';

export interface PoolerEntry {
  name: string;
  paused: boolean;
}

/** A console session, which the caller closes. @throws HostError POOLER_UNAVAILABLE */
export const openConsole = (settings: AgentSettings) =>
  openSession({
    host: settings.POOLER_SOCKET_DIR,
    port: settings.POOLER_PORT,
    user: CONSOLE,
    database: CONSOLE,
  }).catch(unavailable);

/** Runs `action` in a new console session. @throws HostError POOLER_UNAVAILABLE */
export async function withConsole<T>(
  settings: AgentSettings,
  action: (console: Session) => Promise<T>,
): Promise<T> {
  const console = await openConsole(settings);
  try {
    return await action(console);
  } catch (error) {
    return unavailable(error);
  } finally {
    await console.end();
  }
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

/** Clients that are logged in, and those that are logging in. */
export const showClientsAndLogins = (console: Session) => readClients(console, 'SHOW SOCKETS');

/** The databases that clients are logging in to. */
export async function showLogins(console: Session): Promise<string[]> {
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

/** Numbers of one database: clients that wait for a server connection, and server connections that are logging in. */
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

/** The databases that the pooler serves, except its console. */
export async function showDatabases(console: Session): Promise<PoolerEntry[]> {
  const { rows } = await console.query<{ name: string; paused: number }>('SHOW DATABASES');
  return rows
    .filter(({ name }) => name !== CONSOLE)
    .map(({ name, paused }) => ({ name, paused: Number(paused) === 1 }));
}
