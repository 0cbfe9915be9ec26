import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';
import { expect, test } from 'vitest';
import { countConnections, readConnections } from '../../../agent/pooler/restart.ts';

const LINES = `\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1920 00000000:0000 0A 00000000:00000000 00:00000000 00000000   104        0 1 1
   1: 0100007F:1920 0100007F:E001 01 00000000:00000000 00:00000000 00000000   104        0 2 1
   2: 0100007F:1920 0100007F:E002 03 00000000:00000000 01:00000000 00000000     0        0 0 1
   3: 0100007F:1920 0100007F:E003 06 00000000:00000000 03:00000000 00000000     0        0 0 1
   4: 0100007F:E001 0100007F:1920 01 00000000:00000000 00:00000000 00000000   104        0 3 1
`;

test('connections that are open or opening count, and neither listeners nor the ends that clients have', () => {
  expect(countConnections([LINES, ''], 6432)).toBe(2);
  expect(countConnections([LINES, LINES], 6432)).toBe(4);
  expect(countConnections([LINES], 6433)).toBe(0);
});

test('the kernel counts a connection until it is closed', async () => {
  const server = createServer((socket) => socket.resume().on('end', () => socket.end()));
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  expect(await readConnections(port)).toBe(0);
  const client = connect(port, '127.0.0.1');
  await once(client, 'connect');
  expect(await readConnections(port)).toBe(1);
  client.end();
  await once(client.resume(), 'close');
  expect(await readConnections(port)).toBe(0);
  server.close();
});
