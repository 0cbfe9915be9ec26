import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';

/**
 * A relay to a port of this machine, whose bytes arrive later in both directions. The handshake of TCP is not delayed.
 * @param ms of one direction, which is half of a round trip
 */
export async function startFarRelay(port: number, ms: number) {
  const sockets = new Set<Socket>();
  const pass = (from: Socket, to: Socket) => {
    sockets.add(from);
    // Timers of the same length keep their order.
    from.on('data', (chunk) => setTimeout(() => to.write(chunk), ms));
    from.on('end', () => setTimeout(() => to.end(), ms));
    from.on('error', () => to.destroy());
    from.on('close', () => sockets.delete(from));
  };
  const server = createServer({ noDelay: true, allowHalfOpen: true }, (near) => {
    const far = connect({ port, host: '127.0.0.1', noDelay: true, allowHalfOpen: true });
    pass(near, far);
    pass(far, near);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    stop: async () => {
      for (const socket of sockets) socket.destroy();
      server.close();
      await once(server, 'close');
    },
  };
}
