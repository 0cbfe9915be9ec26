import { once } from 'node:events';
import { connect, createServer } from 'node:net';

/** What the parent sends: ports to listen on, or an address to connect from. */
export type Order = { listen: number[] } | { from: string; to: string; port: number };

// The parent has ended, in whatever way: so must this.
process.on('disconnect', () => process.exit());

process.on('message', async (order: Order) => {
  process.send?.('listen' in order ? await listenOn(order.listen) : await connectOnce(order));
});

async function listenOn(ports: number[]): Promise<string> {
  for (const port of ports) {
    const server = createServer((socket) => socket.on('error', () => {}).end());
    await once(server.listen(port, '::'), 'listening');
  }
  return 'listening';
}

/** @returns `in`, or the system's error code */
function connectOnce({ from, to, port }: { from: string; to: string; port: number }): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect({ host: to, port, localAddress: from }, () => {
      resolve('in');
      socket.destroy();
    });
    socket.on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message));
  });
}
