import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

/** Relays connections to a port of this machine, and can cut them. */
export class TcpProxy {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  /** `refusing` ends all connections, also new ones; `silent` accepts them and passes nothing on. */
  #cut: 'refusing' | 'silent' | null = null;

  private constructor(target: number) {
    this.#server = createServer((socket) => {
      this.#keep(socket);
      if (this.#cut === 'refusing') socket.destroy();
      if (this.#cut) return;
      const there = connect(target, '127.0.0.1');
      this.#keep(there);
      for (const [from, to] of [
        [socket, there],
        [there, socket],
      ] as const) {
        from.on('close', () => to.destroy());
        from.pipe(to);
      }
    });
  }

  static async start(target: number): Promise<TcpProxy> {
    const proxy = new TcpProxy(target);
    proxy.#server.listen(0, '127.0.0.1');
    await once(proxy.#server, 'listening');
    return proxy;
  }

  get port(): string {
    return String((this.#server.address() as AddressInfo).port);
  }

  cut(kind: 'refusing' | 'silent'): void {
    this.#cut = kind;
    for (const socket of this.#sockets) {
      if (kind === 'refusing') socket.destroy();
      else socket.unpipe().pause();
    }
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
