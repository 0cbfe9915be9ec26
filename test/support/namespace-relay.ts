import { once } from 'node:events';
import { connect, createServer } from 'node:net';

/** Passes connections of the loopback on to another address: `HOST PORT=PORT…`. */

// The parent has ended, in whatever way: so must this.
process.on('disconnect', () => process.exit());

const [host = '', ...pairs] = process.argv.slice(2);
for (const pair of pairs) {
  const [port, to] = pair.split('=').map(Number);
  const server = createServer((socket) => {
    const other = connect(to ?? 0, host);
    socket.on('error', () => other.destroy());
    other.on('error', () => socket.destroy());
    socket.pipe(other).pipe(socket);
  });
  await once(server.listen(port, '127.0.0.1'), 'listening');
}
process.send?.('ready');
