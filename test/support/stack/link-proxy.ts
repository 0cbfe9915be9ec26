import { once } from 'node:events';
import { createServer, type IncomingMessage, request as requestOf, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { WebSocket, WebSocketServer } from 'ws';
import type { Method } from '../../../shared/protocol/operations.ts';
import type { Cut } from '../tcp-proxy.ts';

/** A point on the way between gateway and agent. */
export interface Spot {
  method: Method;
  side: 'call' | 'reply';
}

interface Post extends Spot {
  holds: boolean;
  /** Called when a frame has arrived there. */
  meet: () => void;
}

/** How far a frame has come. */
export type FrameState = 'unsent' | 'held' | 'delivered';

/** The latest call of a method, and the reply to it. */
export type StepProgress = Record<Spot['side'], FrameState>;

/** A link, as the two sockets it is made of here. */
interface Pair {
  gateway: WebSocket;
  agent: WebSocket;
  /** The id of the host. */
  host: string | null;
  /** Frames are lost without notice. */
  swallows: boolean;
}

/**
 * Relays between the agent and its gateway and parses their frames, so that a test can stop the service at an
 * exact step without a switch in the product. All other frames pass unchanged. When one side of a link
 * closes, the other side's socket is cut immediately, as it is when a process dies.
 */
export class LinkProxy {
  /** What the agent dials in place of the gateway. */
  readonly url: string;
  readonly #server;
  readonly #target: string;
  readonly #upgrades = new WebSocketServer({ noServer: true });
  readonly #methods = new Map<string, Method>();
  readonly #progress = new Map<Method, StepProgress>();
  #posts: Post[] = [];
  #held: (() => void)[] = [];
  #pairs: Pair[] = [];
  /** Hosts that do not reach the gateway, by id. */
  readonly #partitions = new Map<string, Cut>();
  /** Sockets that such a host has opened, and that nobody answers. */
  #unanswered: Duplex[] = [];
  /** Milliseconds by which each frame is delayed. */
  delay = 0;
  /** How often each call and each reply arrives. */
  copies: 1 | 2 = 1;

  private constructor(server: ReturnType<typeof createServer>, target: string) {
    this.#server = server;
    this.#target = target;
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    server.on('request', (request, response) => void this.#forward(request, response));
    server.on('upgrade', (request, socket, head) => this.#connect(request, socket, head));
  }

  /** @param gatewayUrl need not answer yet */
  static async start(gatewayUrl: string): Promise<LinkProxy> {
    const server = createServer().listen(0, '127.0.0.1');
    await once(server, 'listening');
    return new LinkProxy(server, gatewayUrl.replace(/^http/, 'ws'));
  }

  /** Stops the next frame at this spot. @returns when it has arrived */
  hold(spot: Spot): Promise<void> {
    return this.#post(spot, true);
  }

  /** Lets the next frame at this spot pass. @returns when it has */
  watch(spot: Spot): Promise<void> {
    return this.#post(spot, false);
  }

  /** How far the latest call of this method has come since `forgetProgress`. */
  progressOf(method: Method): StepProgress {
    return this.#progress.get(method) ?? { call: 'unsent', reply: 'unsent' };
  }

  forgetProgress(): void {
    this.#progress.clear();
  }

  /** Sends the held frames whose link still exists, and holds no further frame. */
  letGo(): void {
    const held = this.#held;
    this.#held = [];
    this.#posts = [];
    for (const goOn of held) goOn();
  }

  /** Ends the current links without a close frame. */
  cut(): void {
    for (const pair of this.#pairs) this.#end(pair);
  }

  /** The current links stay open and carry nothing; new ones work. */
  swallow(): void {
    for (const pair of this.#pairs) pair.swallows = true;
  }

  /** One host does not reach the gateway until `mend`, by its present link or a new one. */
  partition(host: string, cut: Cut): void {
    this.#partitions.set(host, cut);
    for (const pair of this.#pairs.filter((one) => one.host === host))
      if (cut === 'silent') pair.swallows = true;
      else this.#end(pair);
  }

  mend(host: string): void {
    this.#partitions.delete(host);
    for (const pair of this.#pairs) if (pair.host === host && pair.swallows) this.#end(pair);
    for (const socket of this.#unanswered) socket.destroy();
    this.#unanswered = [];
  }

  #end({ gateway, agent }: Pair): void {
    gateway.terminate();
    agent.terminate();
  }

  async stop(): Promise<void> {
    for (const socket of this.#unanswered) socket.destroy();
    for (const socket of this.#upgrades.clients) socket.terminate();
    this.#server.close();
    await once(this.#server, 'close');
  }

  #post(spot: Spot, holds: boolean): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#posts.push({ ...spot, holds, meet: resolve });
    return promise;
  }

  /** Hosts ask for their role over HTTPS. The host name is part of the signature, so it is passed on unchanged. */
  async #forward(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const body = Buffer.concat(await request.toArray());
    const [, host = ''] = body.toString().match(/"host_id":"([0-9a-f-]{36})"/) ?? [];
    const cut = this.#partitions.get(host);
    if (cut === 'silent') this.#unanswered.push(request.socket);
    if (cut === 'refusing') request.socket.destroy();
    if (cut) return;
    const { method, headers } = request;
    const url = `${this.#target.replace(/^ws/, 'http')}${request.url}`;
    const onward = requestOf(url, { method, headers }, (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(response);
    });
    onward.on('error', () => request.socket.destroy());
    onward.end(body);
  }

  /** The host name is part of the handshake's signature, so it is passed on unchanged. */
  #connect(request: IncomingMessage, socket: Duplex, head: Buffer): void {
    socket.on('error', () => {});
    const host = new URL(request.url ?? '', this.url).searchParams.get('host_id');
    const cut = host === null ? undefined : this.#partitions.get(host);
    if (cut === 'silent') this.#unanswered.push(socket);
    if (cut === 'refusing') socket.destroy();
    if (cut) return;
    const gateway = new WebSocket(`${this.#target}${request.url}`, {
      headers: { host: request.headers.host },
      perMessageDeflate: false,
    });
    gateway.on('error', () => socket.destroy());
    gateway.on('open', () => {
      this.#upgrades.handleUpgrade(request, socket, head, (agent) => {
        agent.on('error', () => {});
        const isCut = host !== null && this.#partitions.has(host);
        const pair = { gateway, agent, host, swallows: isCut };
        this.#pairs.push(pair);
        agent.on('close', () => {
          this.#pairs = this.#pairs.filter((other) => other !== pair);
        });
        this.#relay(pair, gateway, agent);
        this.#relay(pair, agent, gateway);
      });
    });
  }

  #relay(pair: Pair, from: WebSocket, to: WebSocket): void {
    let onTheWay = Promise.resolve();
    from.on('message', (data) => {
      if (pair.swallows) return;
      const text = data.toString();
      const spot = this.#spotOf(text);
      const copies = spot ? this.copies : 1;
      const arrive = () => {
        if (pair.swallows || to.readyState !== WebSocket.OPEN) return;
        for (let sent = 0; sent < copies; sent++) to.send(text);
      };
      const { delay } = this;
      const record = (state: FrameState) => {
        if (spot) this.#record(spot, state);
      };
      const goOn = () => {
        record('delivered');
        onTheWay = onTheWay.then(() => (delay > 0 ? sleep(delay).then(arrive) : arrive()));
      };
      const post = this.#posts.find(({ method, side }) => method === spot?.method && side === spot.side);
      this.#posts = this.#posts.filter((other) => other !== post);
      if (post?.holds) {
        record('held');
        this.#held.push(goOn);
      } else {
        goOn();
      }
      post?.meet();
    });
    from.on('close', () => to.terminate());
  }

  #record({ method, side }: Spot, state: FrameState): void {
    const { call } = this.progressOf(method);
    this.#progress.set(method, side === 'call' ? { call: state, reply: 'unsent' } : { call, reply: state });
  }

  /** Null for the handshake and for heartbeats. */
  #spotOf(text: string): Spot | null {
    if (!text.startsWith('{')) return null;
    const { id, method } = JSON.parse(text) as { id?: string; method?: Method };
    if (!id) return null;
    if (method) this.#methods.set(id, method);
    const asked = this.#methods.get(id);
    return asked ? { method: asked, side: method ? 'call' : 'reply' } : null;
  }
}
