import { once } from 'node:events';
import { connect, type NetConnectOpts, type Socket } from 'node:net';
import { instancesNow } from '../pooler/restart-state.ts';
import { AGENT_ADDRESS } from '../postgres/connect.ts';
import type { AgentSettings } from '../process/settings.ts';
import { fatal, SqlRefusal, violation, wrongPassword } from './admit-client.ts';
import { MessageReader } from './message-reader.ts';
import { ScramExchange, type ScramKeys, ScramRefused } from './scram.ts';
import { AUTHENTICATION, messageOf, readError, type Startup, startupMessage, takeAnswer } from './wire.ts';

/** Where a client over WebSocket leads to. */
export type Server = 'pooler' | 'postgres';

const MECHANISM = 'SCRAM-SHA-256';

/** SQLSTATE `cannot_connect_now`. */
const away = (server: Server) =>
  new SqlRefusal(
    fatal(
      '57P03',
      `${server === 'pooler' ? 'the pooler' : 'PostgreSQL'} is starting or restarting: try again`,
    ),
  );

/**
 * The address of a server on this machine. Both check the password again.
 * @param listens PostgreSQL's `listen_addresses`
 */
export function addressOf(server: Server, settings: AgentSettings, listens: string): NetConnectOpts {
  if (server === 'pooler') {
    const isMain = instancesNow(settings).newClients === 'main';
    const port = isMain ? settings.POOLER_PORT : settings.POOLER_STANDBY_PORT;
    return { path: `${settings.POOLER_SOCKET_DIR}/.s.PGSQL.${port}` };
  }
  const host = localHost(listens);
  if (host === null)
    throw new SqlRefusal(fatal('57P03', 'PostgreSQL listens at no IPv4 address, which direct clients need'));
  return { host, port: settings.POSTGRES_PORT, localAddress: AGENT_ADDRESS };
}

/** An IPv4 address at which PostgreSQL can be reached from this machine; null without one. */
export function localHost(listens: string): string | null {
  const addresses = listenAddresses(listens);
  if (addresses.some((address) => ['*', '0.0.0.0', 'localhost', '127.0.0.1'].includes(address)))
    return '127.0.0.1';
  return addresses.find((address) => /^[\d.]+$/.test(address)) ?? null;
}

export const listenAddresses = (listens: string): string[] =>
  listens
    .split(',')
    .map((address) => address.trim())
    .filter(Boolean);

/** A connection that is logged in. */
export interface ServerConnection {
  socket: Socket;
  /** Bytes of the server after `AuthenticationOk`. */
  rest: Buffer;
  /** The process of PostgreSQL; null at the pooler. */
  backend: number | null;
}

/**
 * Logs in to a server with a startup message.
 * @param signal ends it
 * @throws SqlRefusal with the server's error, or for a server that is away
 */
export async function logIn(
  server: Server,
  address: NetConnectOpts,
  { user, parameters }: Startup,
  keys: ScramKeys,
  signal: AbortSignal,
): Promise<ServerConnection> {
  const socket = connect(address);
  socket.on('error', () => {});
  const abort = () => socket.destroy();
  signal.addEventListener('abort', abort, { once: true });
  try {
    await once(socket, 'connect', { signal }).catch(() => {
      throw away(server);
    });
    socket.setNoDelay();
    socket.write(startupMessage(parameters));
    return { socket, ...(await authenticate(server, socket, user, keys)) };
  } catch (error) {
    socket.destroy();
    if (error instanceof ScramRefused) throw new SqlRefusal(wrongPassword(user));
    throw error;
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

async function authenticate(
  server: Server,
  socket: Socket,
  user: string,
  keys: ScramKeys,
): Promise<Omit<ServerConnection, 'socket'>> {
  const exchange = new ScramExchange(keys);
  const reader = new MessageReader(socket, () => away(server));
  const next = async () => {
    const answer = await reader.take(takeAnswer);
    if (answer.kind === 'E') throw new SqlRefusal(errorOfLogin(readError(answer.body), user));
    return answer;
  };
  for (;;) {
    const { kind, body } = await next();
    if (kind !== 'R' || body.length < 4)
      throw violation('the server has sent something else than its authentication');
    const text = body.toString('utf8', 4);
    const step = body.readInt32BE(0);
    if (step === AUTHENTICATION.ok) break;
    if (step === AUTHENTICATION.sasl && text.split('\0').includes(MECHANISM)) {
      const first = exchange.first();
      socket.write(messageOf('p', `${MECHANISM}\0`, Buffer.byteLength(first), first));
    } else if (step === AUTHENTICATION.saslContinue) socket.write(messageOf('p', exchange.final(text)));
    else if (step === AUTHENTICATION.saslFinal) exchange.confirm(text);
    else throw violation('the server asks for another authentication than SCRAM-SHA-256');
  }
  // PgBouncer sends the rest when it has a session with PostgreSQL.
  if (server === 'pooler') return { rest: reader.rest(), backend: null };
  const passed: Buffer[] = [];
  for (;;) {
    const { kind, body } = await next();
    passed.push(messageOf(kind, body));
    if (kind === 'K')
      return { rest: Buffer.concat([...passed, reader.rest()]), backend: body.readInt32BE(0) };
  }
}

/** PgBouncer has other texts for what PostgreSQL calls `invalid_password` and `too_many_connections`. */
function errorOfLogin({ code, message }: { code: string; message: string }, user: string) {
  if (code === '28P01' || /password authentication failed|SASL authentication failed/.test(message))
    return wrongPassword(user);
  if (/^no more connections allowed|^too many/.test(message)) return fatal('53300', message);
  return fatal(code, message);
}
