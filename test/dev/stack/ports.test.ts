import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { ROOT } from '../../../dev/build/repository.ts';
import { choosePorts, isFree, reservePort, serverPorts, tryReserve } from '../../../dev/stack/ports.ts';
import type { StackSettings } from '../../../dev/stack/settings.ts';

const PROCESSES = 4;
const PORTS_EACH = 20;
/** Few more ports than are asked for, so that the processes compete. */
const NARROW = { first: 31_800, last: 31_999 };

/** Reserves ports, prints them, and holds them until it is killed. */
const PROGRAM = `
  import { reservePort } from ${JSON.stringify(join(ROOT, 'dev/stack/ports.ts'))};
  const ports = [];
  while (ports.length < ${PORTS_EACH}) ports.push(await reservePort(${JSON.stringify(NARROW)}));
  console.log(JSON.stringify(ports));
  setInterval(() => {}, 1000);`;

const children: ChildProcess[] = [];
afterEach(async () => {
  for (const child of children.splice(0)) {
    const ended = once(child, 'exit');
    child.kill('SIGKILL');
    await ended;
  }
});

async function portsOfProcess(): Promise<number[]> {
  const args = ['--input-type=module', '--eval', PROGRAM];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  children.push(child);
  const [line] = await once(child.stdout, 'data');
  return JSON.parse(String(line));
}

test('processes that ask concurrently get different ports', { timeout: 60_000 }, async () => {
  const ports = (await Promise.all(Array.from({ length: PROCESSES }, portsOfProcess))).flat();
  expect(new Set(ports).size).toBe(PROCESSES * PORTS_EACH);
  expect(await Promise.all(ports.map(tryReserve))).not.toContain(true);
});

test('the ports of a process that was killed can be reserved again', async () => {
  const ports = await portsOfProcess();
  const [child] = children.splice(0);
  const ended = once(child as ChildProcess, 'exit');
  child?.kill('SIGKILL');
  await ended;
  expect(await tryReserve(ports[0] ?? 0)).toBe(true);
});

test('a port in use is skipped', async () => {
  const port = await reservePort();
  const next = await reservePort({ first: port, last: port + 20 });
  expect(next).not.toBe(port);
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port: used } = server.address() as { port: number };
  expect(await isFree(used)).toBe(false);
  expect(await tryReserve(used)).toBe(false);
  await expect(reservePort({ first: used, last: used })).rejects.toThrow(
    `all ports from ${used} to ${used} are taken`,
  );
  server.close();
  await once(server, 'close');
  expect(await tryReserve(used)).toBe(true);
});

test.each([
  ['32768\t60999\n', { first: 10_000, last: 32_767 }],
  ['1024 50000', { first: 50_001, last: 65_535 }],
  ['10500 65000', { first: 20_000, last: 32_000 }],
  [null, { first: 20_000, last: 32_000 }],
  ['', { first: 20_000, last: 32_000 }],
])('with the ephemeral range %j, servers listen on %j', (ephemeral, range) => {
  expect(serverPorts(ephemeral)).toEqual(range);
});

test('a port lies outside the ephemeral range of this machine', async () => {
  const { first, last } = serverPorts();
  for (let n = 0; n < 20; n++) {
    const port = await reservePort();
    expect(port).toBeGreaterThanOrEqual(Math.max(first, 10_000));
    expect(port).toBeLessThanOrEqual(last);
  }
});

test('a start says which standard port is taken, and which one it uses instead', async () => {
  const asked = {
    IDP_PORT: await reservePort(),
    DIRECT_PORT: await reservePort(),
    POOLED_PORT: await reservePort(),
    SQL_PORT: await reservePort(),
  };
  // False if another program has it already.
  await tryReserve(8787);
  const lines: string[] = [];
  const ports = await choosePorts(asked as StackSettings, null, (line) => lines.push(line));
  expect(ports).toMatchObject(asked);
  expect(ports.GATEWAY_PORT).not.toBe(8787);
  expect(lines).toEqual([
    `port 8787 (GATEWAY_PORT) is taken by another program, so it is ${ports.GATEWAY_PORT}`,
  ]);
  lines.length = 0;
  await choosePorts(asked as StackSettings, ports, (line) => lines.push(line));
  expect(lines).toEqual([]);
});
