import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { pipeline } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';

/** What passes immediately of a slow connection: enough for a catalog. */
export const AT_ONCE_BYTES = 2 ** 20;
const PIECE_MS = 250;

/** A stream of which all but its beginning passes at this rate. */
const slowly = (bytesPerSecond: number) =>
  async function* pieces(stream: AsyncIterable<Buffer>) {
    const size = Math.ceil((bytesPerSecond * PIECE_MS) / 1000);
    let passed = 0;
    for await (const chunk of stream)
      for (let at = 0; at < chunk.length; ) {
        const left = AT_ONCE_BYTES - passed;
        if (left <= 0) await sleep(PIECE_MS);
        const piece = chunk.subarray(at, at + (left > 0 ? left : size));
        at += piece.length;
        passed += piece.length;
        yield piece;
      }
  };

/** `refusing` ends all connections, also new ones; `silent` accepts them and passes nothing on. */
export type Cut = 'refusing' | 'silent';

/** Relays connections to a port of this machine, and can cut them. */
export class TcpProxy {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #cut: Cut | null = null;

  private constructor(target: number, bytesPerSecond: number | null) {
    this.#server = createServer((socket) => {
      this.#keep(socket);
      if (this.#cut === 'refusing') socket.destroy();
      if (this.#cut) return;
      const there = connect(target, '127.0.0.1');
      this.#keep(there);
      for (const [from, to] of [
        [socket, there],
        [there, socket],
      ] as const)
        from.on('close', () => to.destroy());
      socket.pipe(there);
      if (bytesPerSecond === null) there.pipe(socket);
      else pipeline(there, slowly(bytesPerSecond), socket, () => {});
    });
  }

  /**
   * @param bytesPerSecond what the target sends is passed on at this rate; null: as it comes
   * @param at where it listens
   */
  static async start(
    target: number,
    bytesPerSecond: number | null = null,
    at: { host: string; port: number } = { host: '127.0.0.1', port: 0 },
  ): Promise<TcpProxy> {
    const proxy = new TcpProxy(target, bytesPerSecond);
    proxy.#server.listen(at);
    await once(proxy.#server, 'listening');
    return proxy;
  }

  get port(): string {
    return String((this.#server.address() as AddressInfo).port);
  }

  cut(kind: Cut): void {
    this.#cut = kind;
    if (kind === 'silent') this.freeze();
    else for (const socket of this.#sockets) socket.destroy();
  }

  /** The current connections stay open and pass nothing on; new ones work. */
  freeze(): void {
    for (const socket of this.#sockets) socket.unpipe().pause();
  }

  /** New connections work. Those that were silent end. */
  mend(): void {
    this.#cut = null;
    for (const socket of this.#sockets) socket.destroy();
  }

  stop(): void {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
  }

  #keep(socket: Socket): void {
    this.#sockets.add(socket);
    socket.on('error', () => {});
    socket.on('close', () => this.#sockets.delete(socket));
  }
}
