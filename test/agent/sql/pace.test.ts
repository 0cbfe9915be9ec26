import { connect, createServer, type Server, type Socket } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { PACE, Pace } from '../../../agent/sql/pace.ts';
import { eventually } from '../../support/eventually.ts';

const KB = 2 ** 10;
const RATE = { burst: 64 * KB, perSecond: 640 * KB };

let server: Server;
let port: number;
/** Bytes that a client is sent, in the order of the connections. */
const sizes: number[] = [];
beforeAll(async () => {
  server = createServer((socket) => {
    // A test breaks off its connection.
    socket.on('error', () => {});
    socket.end(Buffer.alloc(sizes.shift() ?? 0));
  });
  await new Promise<void>((listening) => server.listen(0, '127.0.0.1', listening));
  const address = server.address();
  port = typeof address === 'object' ? (address?.port ?? 0) : 0;
});
afterAll(() => new Promise((closed) => server.close(closed)));

/** Reads as many bytes as a tenant. @returns the socket, and when all of them were read */
function reading(pace: Pace, tenant: string, bytes: number): { socket: Socket; read: Promise<number> } {
  sizes.push(bytes);
  const socket = connect(port, '127.0.0.1');
  pace.limit(socket, tenant);
  let read = 0;
  socket.on('data', ({ length }: Buffer) => {
    read += length;
  });
  const all = new Promise<number>((resolve, reject) => {
    socket.on('end', () => (read === bytes ? resolve(performance.now()) : reject(new Error(`read ${read}`))));
    socket.on('error', reject);
  });
  return { socket, read: all };
}

test('a tenant has its burst at once, and then so many bytes a second', async () => {
  const pace = new Pace(RATE);
  const begun = performance.now();
  const ended = await reading(pace, 'one', 256 * KB).read;
  // A socket reads up to 64 KB before it is paused.
  expect(ended - begun).toBeGreaterThan(((256 - 64 - 64) / 640) * 1000);
});

test('another tenant is not delayed, and the reply that began first is the first that ends', async () => {
  const pace = new Pace(RATE);
  const ends: string[] = [];
  const all = [
    ['first', 'one', 256],
    ['second', 'one', 192],
    ['neighbour', 'two', 64],
  ] as const;
  await Promise.all(
    all.map(async ([name, tenant, kb]) => {
      await reading(pace, tenant, kb * KB).read;
      ends.push(name);
    }),
  );
  expect(ends).toEqual(['neighbour', 'first', 'second']);
});

test('a short reply of the tenant does not wait for a long one', async () => {
  const pace = new Pace(RATE);
  const ends: string[] = [];
  const long = reading(pace, 'one', 512 * KB);
  const longEnded = long.read.then(() => ends.push('long'));
  await eventually(async () => expect(long.socket.isPaused()).toBe(true));
  await reading(pace, 'one', 32 * KB).read.then(() => ends.push('short'));
  await longEnded;
  expect(ends).toEqual(['short', 'long']);
});

test('a reply that is broken off leaves the others their turns', async () => {
  const pace = new Pace(RATE);
  const broken = reading(pace, 'one', 512 * KB);
  const other = reading(pace, 'one', 128 * KB);
  await eventually(async () => expect(broken.socket.isPaused()).toBe(true));
  broken.socket.destroy();
  await other.read;
});

test('a reply of the largest size fits into the burst', () => {
  expect(PACE.burst).toBeGreaterThanOrEqual(10 * 2 ** 20);
});
