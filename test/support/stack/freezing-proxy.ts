import type { AddressInfo } from 'node:net';
import { connect, createServer, type Socket } from 'node:net';

/** Relays between agent and gateway, and can simulate a network that drops everything. */
export async function startFreezingProxy(targetPort: number) {
  const open = new Set<Socket>();
  const server = createServer((client) => {
    const target = connect(targetPort, '127.0.0.1');
    client.pipe(target).pipe(client);
    for (const socket of [client, target]) {
      open.add(socket);
      socket.on('error', () => {});
      socket.on('close', () => {
        open.delete(socket);
        client.destroy();
        target.destroy();
      });
    }
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    /** The current connections stay open and carry nothing; new ones work. */
    freeze() {
      for (const socket of open) socket.unpipe().pause();
    },
    stop() {
      for (const socket of open) socket.destroy();
      server.close();
    },
  };
}
