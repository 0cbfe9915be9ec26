import { once } from 'node:events';
import { readFileSync, statSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { createServer, type Server as HttpsServer } from 'node:https';
import { isIP, type Socket } from 'node:net';
import { resolve } from 'node:path';
import { type Duplex, pipeline } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { createWebSocketStream, type WebSocket, WebSocketServer } from 'ws';
import { BRANCH_ROLES, branchOfLogin, loginName } from '../../shared/branch/login.ts';
import { AttemptWindows, clientNetwork } from '../attempts/attempt-windows.ts';
import type { Pool } from '../postgres/connect.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { type Log, TroubleLog } from '../process/log.ts';
import type { AgentSettings } from '../process/settings.ts';
import {
  type AdmittingHost,
  admitClient,
  admitClients,
  type Decision,
  fatal,
  type SqlClient,
  type SqlError,
  SqlRefusal,
  violation,
  wrongPassword,
} from './admit-client.ts';
import { MessageReader } from './message-reader.ts';
import type { OpenClients } from './open-clients.ts';
import { comparePassword } from './scram.ts';
import { addressOf, listenAddresses, logIn, type Server, type ServerConnection } from './server-login.ts';
import { SocketRoom } from './socket-room.ts';
import { AUTHENTICATION, errorResponse, messageOf, type Startup, takePassword, takeStartup } from './wire.ts';

/** Bounds of one socket. Those of all together are in `socket-room.ts`. */
const SOCKET_BOUNDS = {
  /** Bytes of a frame, which stays in memory until it is complete. */
  frame: 2 ** 20,
  /** Bytes of the head of the request. */
  head: 8 * 2 ** 10,
  /** From the connection to the login. */
  handshakeMs: 10_000,
  /** Without a byte of either side. */
  idleMs: 3_600_000,
} as const;

const KEEP_ALIVE_MS = 30_000;
const CHECK_EVERY_MS = 30_000;
const LISTEN_AGAIN_MS = 10_000;
/** A client has this long to read the last error. */
const CLOSE_WITHIN_MS = 2_000;

/** SQLSTATE `too_many_connections`. */
const TOO_MANY = '53300';
/** SQLSTATE `admin_shutdown`. */
const STOPPED = fatal('57P01', 'the agent of the database host is restarting: connect again');
/** SQLSTATE `idle_session_timeout`. */
const IDLE = fatal('57P05', 'nothing has passed through the connection for an hour');

/** SQLSTATE `cannot_connect_now`. */
const AWAY = fatal('57P03', 'the database host cannot decide about its clients now: try again');

/** Bytes of the reason of a close frame (RFC 6455, 5.5). */
const REASON_MAX = 123;

/** Wrong passwords from one network that no rule admits, in a minute. */
const REFUSED_PER_MINUTE = 50;
const MINUTE_MS = 60_000;

interface Attempts {
  /** True once the limit is reached. */
  isFull: (branchId: string, address: string) => boolean;
  /** Counts an attempt. @returns false if the limit had been reached before */
  admit: (branchId: string, address: string) => boolean;
}

interface SocketsHost extends AdmittingHost {
  settings: AgentSettings;
  postgres: Pool;
  sql: { clients: OpenClients };
  log: Log;
}

/** How PostgreSQL is reached, and what it presents to clients. */
interface Presented {
  listens: string;
  certFile: string;
  keyFile: string;
}

/**
 * SQL over WebSocket: a client sends the messages of PostgreSQL's protocol in binary frames. It sends its password in clear,
 * inside TLS. The agent compares it, decides, logs in to the local server with it, and then only passes bytes.
 */
export class SqlSockets {
  readonly #host: SocketsHost;
  readonly #attempts: Attempts;
  readonly #room = new SocketRoom();
  readonly #troubles: TroubleLog;
  readonly #ends = new Set<(error: SqlError) => void>();
  /** Ends the handshake of a connection, by its addresses. */
  readonly #handshakes = new Map<string, () => void>();
  readonly #refused = new AttemptWindows('address', () => REFUSED_PER_MINUTE, MINUTE_MS);
  /** PostgreSQL's `listen_addresses`. */
  #listens = '';
  readonly #webSockets = new WebSocketServer({
    noServer: true,
    clientTracking: false,
    perMessageDeflate: false,
    maxPayload: SOCKET_BOUNDS.frame,
  });

  constructor(host: SocketsHost, attempts: Attempts) {
    this.#host = host;
    this.#attempts = attempts;
    this.#troubles = new TroubleLog(host.log);
  }

  /** Serves at the addresses of PostgreSQL until `signal` aborts. A port that is taken is tried again. Never throws. */
  async run(signal: AbortSignal): Promise<void> {
    if (this.#host.settings.SQL_PORT === 0) return;
    const port = this.#host.settings.SQL_PORT;
    while (!signal.aborted) {
      try {
        await this.#serve(signal, () => {
          this.#troubles.clear('port');
          this.#host.log('sql.served', { port });
        });
      } catch (error) {
        this.#troubles.report('sql.unserved', 'port', error, { port });
      }
      await sleep(LISTEN_AGAIN_MS, undefined, { signal }).catch(() => {});
    }
  }

  /** @throws Error when the port or the certificate cannot be used */
  async #serve(signal: AbortSignal, onServed: () => void): Promise<void> {
    const presented = await readPresented(this.#host.postgres);
    let version = versionOf(presented);
    this.#listens = presented.listens;
    const servers = listenAddresses(presented.listens).map((address) => this.#open(presented, address));
    try {
      await Promise.all(servers.map(({ listening }) => listening));
      onServed();
      while (!signal.aborted) {
        await sleep(CHECK_EVERY_MS, undefined, { signal }).catch(() => {});
        // A renewed certificate.
        const now = versionOf(presented);
        if (now !== version) for (const { server } of servers) server.setSecureContext(readPair(presented));
        version = now;
      }
    } finally {
      for (const { server } of servers) {
        server.close();
        server.closeAllConnections();
      }
      for (const end of [...this.#ends]) end(STOPPED);
    }
  }

  #open(presented: Presented, address: string): { server: HttpsServer; listening: Promise<unknown> } {
    const server = createServer({
      ...readPair(presented),
      minVersion: 'TLSv1.2',
      ALPNProtocols: ['http/1.1'],
      handshakeTimeout: SOCKET_BOUNDS.handshakeMs,
      headersTimeout: SOCKET_BOUNDS.handshakeMs,
      requestTimeout: SOCKET_BOUNDS.handshakeMs,
      connectionsCheckingInterval: 1_000,
      maxHeaderSize: SOCKET_BOUNDS.head,
      keepAlive: true,
      keepAliveInitialDelay: KEEP_ALIVE_MS,
      noDelay: true,
    });
    // Before TLS, which costs more than anything else here.
    server.on('connection', (socket: Socket) => this.#admitConnection(socket));
    server.on('request', (_, response) => response.writeHead(404, { Connection: 'close' }).end());
    server.on('upgrade', (request, socket, head) => this.#upgrade(request, socket, head));
    server.on('error', (error) => this.#troubles.report('sql.unserved', 'port', error));
    server.on('tlsClientError', (_, socket) => socket.destroy());
    server.on('clientError', (_, socket) => socket.destroy());
    server.listen({ port: this.#host.settings.SQL_PORT, ...(address !== '*' && { host: address }) });
    return { server, listening: once(server, 'listening') };
  }

  #admitConnection(socket: Socket): void {
    const network = clientNetwork(addressOfPeer(socket));
    const leave = network === null ? null : this.#room.beginHandshake(network, performance.now());
    if (!leave) {
      socket.destroy();
      return;
    }
    const key = connectionKey(socket);
    const timer = setTimeout(() => socket.destroy(), SOCKET_BOUNDS.handshakeMs);
    const end = () => {
      this.#handshakes.delete(key);
      clearTimeout(timer);
      leave();
    };
    this.#handshakes.set(key, end);
    socket.once('close', end);
  }

  #upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): void {
    const server = serverOf(request, this.#host.settings);
    if (server === null) {
      socket.end('HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n');
      return;
    }
    this.#webSockets.handleUpgrade(request, socket, head, (opened) => {
      void this.#converse(opened, request.socket, server);
    });
  }

  /** One client, from its first message to its end. Never throws. */
  async #converse(opened: WebSocket, socket: Socket, server: Server): Promise<void> {
    const { log } = this.#host;
    const started = performance.now();
    const stream = createWebSocketStream(opened);
    stream.on('error', () => {});
    const closed = new AbortController();
    opened.once('close', () => closed.abort());
    const fields = { address: addressOfPeer(socket), server };
    let outcome = 'ended';
    try {
      const login = await this.#logIn(
        new MessageReader(stream, () => violation('the client has left')),
        stream,
        { ...fields, signal: closed.signal },
      );
      Object.assign(fields, { branch_id: login.client.branch_id, role: login.client.role });
      this.#handshakes.get(connectionKey(socket))?.();
      outcome = await this.#pass(opened, stream, login);
      Object.assign(fields, { bytes: login.connection.socket.bytesRead });
    } catch (error) {
      const refusal = this.#refusalOf(error);
      outcome = refusal.code;
      if (opened.readyState === opened.OPEN) {
        opened.send(errorResponse(refusal));
        opened.close(1000);
      }
    }
    log('sql.socket', { ...fields, outcome, duration_ms: Math.round(performance.now() - started) });
  }

  #refusalOf(error: unknown): SqlError {
    if (error instanceof SqlRefusal) return error.error;
    this.#troubles.report('sql.socket_failed', 'clients', error);
    return AWAY;
  }

  /** @throws SqlRefusal */
  async #logIn(
    reader: MessageReader,
    stream: Duplex,
    { address, server, signal }: { address: string; server: Server; signal: AbortSignal },
  ): Promise<LoggedIn> {
    const { settings, sql } = this.#host;
    const startup = await reader.take(takeStartup);
    const client = clientOf(startup, address);
    const first = await admitClient(this.#host, client);
    const verifier = first.outcome === 'outdated' ? null : first.verifier;
    if (verifier !== null) this.#countAttempt(client, first);
    stream.write(messageOf('R', AUTHENTICATION.cleartext));
    const keys = await comparePassword(await reader.take(takePassword), verifier);
    if (!keys) {
      if (verifier !== null && first.outcome === 'refused')
        this.#refused.count(client.branch_id, clientNetwork(address), performance.now());
      throw new SqlRefusal(wrongPassword(startup.user));
    }
    if (first.outcome !== 'admitted') throw new SqlRefusal(first.outcome === 'refused' ? first.error : AWAY);
    const leaveRoom = this.#room.open(first.tenant, client.branch_id);
    const stop = new AbortController();
    const state: LoggedIn['state'] = { ended: null, stop };
    const end = (error: SqlError) => {
      state.ended ??= error;
      stop.abort();
    };
    let backend: number | null = null;
    const leaveClients = sql.clients.add({ client, end, backend: () => backend });
    this.#ends.add(end);
    const leave = () => {
      leaveRoom();
      leaveClients();
      this.#ends.delete(end);
    };
    try {
      // From here on a change of access ends the client. One before it is seen here.
      const [now] = await admitClients(this.#host, [client], { isOpen: true });
      if (now?.outcome === 'refused') throw new SqlRefusal(now.error);
      const where = addressOf(server, settings, this.#listens);
      const either = AbortSignal.any([signal, stop.signal]);
      const connection = await logIn(server, where, startup, keys, either);
      backend = connection.backend;
      return { client, connection, rest: reader.rest(), state, leave };
    } catch (error) {
      leave();
      throw state.ended ? new SqlRefusal(state.ended) : error;
    }
  }

  /** Counts an attempt before its password is known, as at the ports. Attempts without a rule count apart, and close no port. */
  #countAttempt({ branch_id, address }: SqlClient, decision: Decision): void {
    // A blocked client must not learn whether its password is right.
    const isFull =
      decision.outcome === 'admitted'
        ? !this.#attempts.admit(branch_id, address)
        : this.#attempts.isFull(branch_id, address) ||
          this.#refused.isFull(branch_id, clientNetwork(address), performance.now());
    if (isFull)
      throw new SqlRefusal(fatal(TOO_MANY, `too many connection attempts from ${address}: wait a minute`));
  }

  /** Passes bytes until one side ends. @returns how it ended */
  async #pass(
    opened: WebSocket,
    stream: Duplex,
    { connection, rest, state, leave }: LoggedIn,
  ): Promise<string> {
    const { socket } = connection;
    const bytes = () => socket.bytesRead + socket.bytesWritten;
    let seen = { bytes: -1, at: 0 };
    const timer = setInterval(() => {
      const now = performance.now();
      if (bytes() !== seen.bytes) seen = { bytes: bytes(), at: now };
      else if (now - seen.at > SOCKET_BOUNDS.idleMs) {
        state.ended ??= IDLE;
        state.stop.abort();
      }
    }, CHECK_EVERY_MS);
    const close = () => {
      const error = state.ended;
      // PostgreSQL sends its own error to a session that `OpenClients` ends.
      if (connection.backend === null || error === STOPPED || error === IDLE) {
        socket.destroy();
        opened.close(
          error === STOPPED ? 1001 : 1008,
          `${error?.code} ${error?.message}`.slice(0, REASON_MAX),
        );
      }
      abandon();
    };
    // `pipeline` never ends for a side that does not answer.
    const abandon = () => {
      setTimeout(() => {
        socket.destroy();
        opened.terminate();
      }, CLOSE_WITHIN_MS).unref();
    };
    opened.once('close', abandon);
    if (state.stop.signal.aborted) close();
    else state.stop.signal.addEventListener('abort', close, { once: true });
    try {
      stream.write(Buffer.concat([messageOf('R', AUTHENTICATION.ok), connection.rest]));
      if (rest.length > 0) socket.write(rest);
      await Promise.all([passOn(socket, stream), passOn(stream, socket)]);
      return state.ended?.code ?? 'ended';
    } catch (error) {
      return state.ended?.code ?? sqlState(error) ?? 'lost';
    } finally {
      clearInterval(timer);
      leave();
      socket.destroy();
      stream.destroy();
    }
  }
}

const passOn = promisify(pipeline) as (from: Duplex, to: Duplex) => Promise<void>;

interface LoggedIn {
  client: SqlClient;
  connection: ServerConnection;
  /** Bytes of the client after its password. */
  rest: Buffer;
  state: { ended: SqlError | null; stop: AbortController };
  leave: () => void;
}

const NOBODY = '00000000-0000-4000-8000-000000000000';

/** A login that does not have the form of one gets the same work as one that does not exist. */
function clientOf({ user, database }: Startup, address: string): SqlClient {
  const branchId = branchOfLogin(user);
  const role = BRANCH_ROLES.find((role) => loginName(branchId, role) === user);
  const isLogin = role !== undefined && /^[0-9a-f-]{36}$/.test(branchId);
  return {
    project_id: null,
    branch_id: isLogin ? branchId : NOBODY,
    database,
    role: role ?? 'read_only',
    address,
  };
}

/** The server that the address of a request leads to; null for any other address. */
function serverOf({ url = '', headers }: IncomingMessage, settings: AgentSettings): Server | null {
  const asked = URL.parse(url, 'https://host');
  const host = URL.parse(`https://${headers.host}`)?.hostname;
  if (asked?.pathname !== '/v2' || !host) return null;
  const address = asked.searchParams.get('address');
  if (address === null || address === `${host}:${settings.POOLER_PORT}`) return 'pooler';
  return address === `${host}:${settings.POSTGRES_PORT}` ? 'postgres' : null;
}

/** An IPv4 client of a socket for both families has a mapped address. */
const addressOfPeer = ({ remoteAddress = '' }: Socket): string => {
  const plain = remoteAddress.replace(/^::ffff:(?=[\d.]+$)/, '').replace(/%.*$/, '');
  return isIP(plain) ? plain : '';
};

const connectionKey = ({ localAddress, remoteAddress, remotePort }: Socket) =>
  `${localAddress} ${remoteAddress} ${remotePort}`;

/** Reads what PostgreSQL presents. The agent can read the key, because it runs as the same user. */
async function readPresented(postgres: Pool): Promise<Presented> {
  const { rows } = await postgres.query<Record<string, string>>(
    `SELECT current_setting('listen_addresses') AS listens, current_setting('data_directory') AS folder,
       current_setting('ssl_cert_file') AS cert, current_setting('ssl_key_file') AS key`,
  );
  const [{ listens = '', folder = '', cert = '', key = '' } = {}] = rows;
  return { listens, certFile: resolve(folder, cert), keyFile: resolve(folder, key) };
}

const readPair = ({ certFile, keyFile }: Presented) => ({
  cert: readFileSync(certFile),
  key: readFileSync(keyFile),
});

const versionOf = ({ certFile, keyFile }: Presented) =>
  [certFile, keyFile].map((path) => statSync(path, { throwIfNoEntry: false })?.mtimeMs).join();
