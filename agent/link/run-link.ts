import { setTimeout as sleep } from 'node:timers/promises';
import { type CryptoKey, importJWK } from 'jose';
import { WebSocket } from 'ws';
import { BOUNDS, type Bounds } from '../../shared/protocol/bounds.ts';
import type { Clock, Transport } from '../../shared/protocol/transport.ts';
import { AgentLink, type AgentLinkOptions, type LinkEnd } from './agent-link.ts';
import { Backoff } from './backoff.ts';
import { Dispatcher, type Handle, type Log } from './dispatch.ts';
import { gatewayAddress } from './gateway-address.ts';
import type { HostIdentity } from './identity.ts';

/** A socket that is being closed gets this long to say goodbye. */
const GOODBYE_MS = 1_000;
const SAME_REASON_LOGGED_EVERY_MS = 60_000;

interface RunLinkOptions {
  gatewayUrl: string;
  identity: HostIdentity;
  handle: Handle;
  /** Ends the link; `runLink` then returns. Operations that are running are not waited for. */
  signal: AbortSignal;
  log: Log;
  /** Called with the link each time one has come up. */
  onLinked?: (link: AgentLink) => void;
  /** Given by tests alone. */
  bounds?: Bounds;
}

/**
 * Keeps this host linked to its gateway: dials, serves, and dials again until `signal` ends it.
 * @throws Error when the gateway's address or the host's key can't be used at all
 */
export async function runLink(options: RunLinkOptions): Promise<void> {
  const { gatewayUrl, identity, signal, log, onLinked, bounds = BOUNDS } = options;
  const { audience, link } = gatewayAddress(gatewayUrl);
  const key = (await importJWK(identity.private_key, 'EdDSA')) as CryptoKey;
  const linkOptions = {
    hostId: identity.host_id,
    key,
    audience,
    dispatcher: new Dispatcher({ ...options, bounds }),
    clock,
    unixTime: Date.now,
    bounds,
    log,
    onLinked(link: AgentLink) {
      log('link.up');
      onLinked?.(link);
    },
  };
  const pace = new Backoff();
  const downLog = new SparingLog(log);
  while (!signal.aborted) {
    const end = await dial(link(identity.host_id), linkOptions, signal);
    if (signal.aborted) return;
    const wait = Math.round(pace.next(end, Math.random()));
    downLog.write('link.down', end.reason, {
      linked_for_ms: Math.round(end.linkedFor),
      dial_again_in_ms: wait,
    });
    await sleep(wait, undefined, { signal }).catch(() => {});
  }
}

/** One socket from dialling to its end. Never throws. */
function dial(
  address: URL,
  options: Omit<AgentLinkOptions, 'transport'>,
  signal: AbortSignal,
): Promise<LinkEnd> {
  const socket = new WebSocket(address.href, {
    maxPayload: options.bounds.messageBytes,
    handshakeTimeout: options.bounds.handshakeTime,
    perMessageDeflate: false,
    followRedirects: false,
  });
  const { promise, resolve } = Promise.withResolvers<LinkEnd>();
  let failure: { reason: string; unwelcome: boolean } | undefined;
  let link: AgentLink | undefined;
  const leave = () => (link ? link.leave() : socket.terminate());
  signal.addEventListener('abort', leave, { once: true });

  socket.on('open', () => {
    link = new AgentLink({ ...options, transport: transportOf(socket) });
    link.ended.then(resolve);
  });
  socket.on('message', (data, isBinary) => link?.receive(isBinary ? data : data.toString()));
  socket.on('unexpected-response', (_request, { statusCode = 0 }) => {
    failure = { reason: `the gateway answered with status ${statusCode}`, unwelcome: statusCode < 500 };
    socket.terminate();
  });
  socket.on('error', (error) => {
    failure ??= { reason: error.message, unwelcome: false };
  });
  socket.on('close', (code, reason) => {
    const end = { reason: reason.toString() || `closed with code ${code}`, unwelcome: false, ...failure };
    if (link) link.closed(code, end.reason);
    else resolve({ linkedFor: 0, ...end });
  });
  return promise.finally(() => signal.removeEventListener('abort', leave));
}

/** One that goes on evenly when the host's clock is set: a silent link would be held for live until that comes round. */
const clock: Clock = {
  now: () => performance.now(),
  after(milliseconds, task) {
    const timer = setTimeout(task, milliseconds);
    return () => clearTimeout(timer);
  },
};

const transportOf = (socket: WebSocket): Transport => ({
  send: (text) => socket.send(text),
  close(code, reason) {
    socket.close(code, reason);
    const timer = setTimeout(() => socket.terminate(), GOODBYE_MS);
    socket.once('close', () => clearTimeout(timer));
  },
});

/** A gateway that is away for hours is worth a line a minute. */
class SparingLog {
  readonly #log: Log;
  readonly #loggedAt = new Map<string, number>();

  constructor(log: Log) {
    this.#log = log;
  }

  write(event: string, reason: string, fields: Record<string, unknown>): void {
    const now = performance.now();
    if (now - (this.#loggedAt.get(reason) ?? Number.NEGATIVE_INFINITY) < SAME_REASON_LOGGED_EVERY_MS) return;
    this.#loggedAt.set(reason, now);
    this.#log(event, { reason, ...fields });
  }
}
