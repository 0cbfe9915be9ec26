import { setTimeout as sleep } from 'node:timers/promises';
import { type CryptoKey, importJWK } from 'jose';
import { WebSocket } from 'ws';
import { backoff } from '../../shared/backoff.ts';
import { BOUNDS, type Bounds } from '../../shared/protocol/bounds.ts';
import type { Clock, Transport } from '../../shared/protocol/transport.ts';
import { TroubleLog } from '../process/log.ts';
import { AgentLink, type AgentLinkOptions, type LinkEnd } from './agent-link.ts';
import { Dispatcher, type Handle, type Log } from './dispatch.ts';
import { gatewayAddress } from './gateway-address.ts';
import type { HostIdentity } from './identity.ts';

const FAILED = { first: 200, longest: 5_000 };
/**
 * After a refusal, or when another agent with this identity took over: an immediate redial would fail again.
 */
const REFUSED_MS = 30_000;
/** A link that was up for this long counts as a success. */
const STABLE_AFTER_MS = 10_000;

/** How long the agent waits before it dials the gateway again. */
export class RedialBackoff {
  #failures = 0;

  /** Milliseconds to wait. @param random jitter, from 0 to 1 */
  next(end: LinkEnd, random: number): number {
    if (end.refused) return backoff(0, { first: REFUSED_MS, longest: REFUSED_MS, random });
    if (end.linkedFor >= STABLE_AFTER_MS) this.#failures = 0;
    const wait = backoff(this.#failures, { ...FAILED, random });
    this.#failures += 1;
    return wait;
  }
}

/** Time for the closing handshake of a socket (RFC 6455 section 7), before the connection is cut. */
const CLOSE_WITHIN_MS = 1_000;

interface RunLinkOptions {
  gatewayUrl: string;
  identity: HostIdentity;
  handle: Handle;
  /** Ends the link; `runLink` then returns without waiting for operations in progress. */
  signal: AbortSignal;
  log: Log;
  /** Called with each link that has come up. */
  onLinked?: (link: AgentLink) => void;
  /** Set by tests only. */
  bounds?: Bounds;
}

/**
 * Links this host to its gateway: dials, serves, and redials until `signal` aborts.
 * @throws Error when the gateway's address or the host's key is unusable
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
  const redial = new RedialBackoff();
  const troubles = new TroubleLog(log);
  while (!signal.aborted) {
    const end = await dial(link(identity.host_id), linkOptions, signal);
    if (signal.aborted) return;
    const wait = Math.round(redial.next(end, Math.random()));
    troubles.report('link.down', 'link', end.reason, {
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
  let failure: { reason: string; refused: boolean } | undefined;
  let link: AgentLink | undefined;
  const leave = () => (link ? link.leave() : socket.terminate());
  signal.addEventListener('abort', leave, { once: true });

  socket.on('open', () => {
    link = new AgentLink({ ...options, transport: transportOf(socket) });
    link.ended.then(resolve);
  });
  socket.on('message', (data, isBinary) => link?.receive(isBinary ? data : data.toString()));
  socket.on('unexpected-response', (_request, { statusCode = 0 }) => {
    failure = { reason: `the gateway responded with status ${statusCode}`, refused: statusCode < 500 };
    socket.terminate();
  });
  socket.on('error', (error) => {
    failure ??= { reason: error.message, refused: false };
  });
  socket.on('close', (code, reason) => {
    const end = { reason: reason.toString() || `closed with code ${code}`, refused: false, ...failure };
    if (link) link.closed(code, end.reason);
    else resolve({ linkedFor: 0, ...end });
  });
  return promise.finally(() => signal.removeEventListener('abort', leave));
}

/** Monotonic, so that a clock that is set back does not hide the silence of a lost link. */
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
    const timer = setTimeout(() => socket.terminate(), CLOSE_WITHIN_MS);
    socket.once('close', () => clearTimeout(timer));
  },
});
