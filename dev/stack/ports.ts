import { existsSync, readFileSync } from 'node:fs';
import { createServer, type ListenOptions } from 'node:net';
import { z } from 'zod';
import { Refusal, type StackSettings } from './settings.ts';

/** Both ends are included. */
export interface PortRange {
  first: number;
  last: number;
}

/** The range from which Linux takes the local port of an outgoing connection, as two numbers. */
const EPHEMERAL_RANGE_FILE = '/proc/sys/net/ipv4/ip_local_port_range';

/** Well-known servers listen below it. */
const LOWEST = 10_000;
const HIGHEST = 65_535;
/** A smaller range may be used up by the stacks of one test run. */
const ENOUGH_PORTS = 1_000;
const FALLBACK: PortRange = { first: 20_000, last: 32_000 };

/**
 * The ports that a server of the local stack may listen on. They lie outside the ephemeral range: any
 * outgoing connection of this machine may take a port of that between the choice of the port and its use.
 * @param ephemeral content of the kernel's file; null where it is missing
 */
export function serverPorts(ephemeral = readEphemeralRange()): PortRange {
  const [first = 0, last = 0] = (ephemeral ?? '').trim().split(/\s+/).map(Number);
  if (!(first > 0 && last >= first)) return FALLBACK;
  const ranges = [
    { first: LOWEST, last: first - 1 },
    { first: Math.max(LOWEST, last + 1), last: HIGHEST },
  ];
  return ranges.find((range) => range.last - range.first + 1 >= ENOUGH_PORTS) ?? FALLBACK;
}

const readEphemeralRange = () =>
  existsSync(EPHEMERAL_RANGE_FILE) ? readFileSync(EPHEMERAL_RANGE_FILE, 'utf8') : null;

/**
 * Chooses a free port of 127.0.0.1 and reserves it for the life of this process, so that no other start or
 * test run on this machine chooses it before a server listens on it.
 * @throws Refusal when every port of the range is taken
 */
export async function reservePort({ first, last }: PortRange = serverPorts()): Promise<number> {
  const count = last - first + 1;
  const offset = Math.floor(Math.random() * count);
  for (let n = 0; n < count; n++) {
    const port = first + ((offset + n) % count);
    if (await tryReserve(port)) return port;
  }
  throw new Refusal(`all ports from ${first} to ${last} are taken`);
}

/** Reserves this port. @returns false when it is in use, or reserved already */
export async function tryReserve(port: number): Promise<boolean> {
  // The kernel gives an abstract unix socket to one process and frees it when that process ends, even by
  // SIGKILL.
  const reservation = await listen({ path: `\0branchgate-port-${port}` });
  if (!reservation) return false;
  if (await isFree(port)) {
    reservation.unref();
    return true;
  }
  reservation.close();
  return false;
}

/** Whether a server can listen on this port of 127.0.0.1, reserved or not. */
export async function isFree(port: number): Promise<boolean> {
  const server = await listen({ port, host: '127.0.0.1' });
  if (!server) return false;
  await new Promise((resolve) => server.close(resolve));
  return true;
}

/** Null when the address is taken. */
function listen(address: ListenOptions) {
  const server = createServer();
  return new Promise<typeof server | null>((resolve) => {
    server.once('error', () => resolve(null));
    server.listen(address, () => resolve(server));
  });
}

/**
 * The port of each part, unless a setting names another. `fixed`: credentials and accounts of the first start
 * contain this port, so it cannot change.
 */
const PORTS = {
  GATEWAY_PORT: { standard: 8787, fixed: false },
  IDP_PORT: { standard: 8790, fixed: true },
  DIRECT_PORT: { standard: 5432, fixed: true },
  POOLED_PORT: { standard: 6432, fixed: true },
  /** SQL over WebSocket. */
  SQL_PORT: { standard: 4443, fixed: false },
} as const;

type PortName = keyof typeof PORTS;
const PORT_NAMES = Object.keys(PORTS) as PortName[];

/** Ports that an earlier start has stored, which may not have known all of them. */
export const StoredPorts = z.partialRecord(z.enum(PORT_NAMES), z.int());
export type StoredPorts = z.output<typeof StoredPorts>;
export type Ports = Record<PortName, number>;

/**
 * @param stored the ports of an earlier start
 * @param report gets a line for each standard port that is taken
 * @throws Refusal when a port that is asked for or stored is taken
 */
export async function choosePorts(
  settings: StackSettings,
  stored: StoredPorts | null,
  report: (line: string) => void,
): Promise<Ports> {
  const chosen = new Map<PortName, number>();
  for (const name of PORT_NAMES) {
    const asked = settings[name];
    if (stored?.[name] !== undefined && PORTS[name].fixed && asked !== undefined && asked !== stored[name]) {
      throw new Refusal(
        `${name} can't change to ${asked}: what is in ${settings.DEV_DIR} names port ${stored[name]} (set DEV_DIR to a new folder)`,
      );
    }
    const wanted = asked ?? stored?.[name];
    const { standard } = PORTS[name];
    const port = wanted === undefined ? await newPort(standard) : await ifFree(name, wanted);
    if (wanted === undefined && port !== standard)
      report(`port ${standard} (${name}) is taken by another program, so it is ${port}`);
    chosen.set(name, port);
  }
  return Object.fromEntries(chosen) as Ports;
}

/** The ports of a further database host: those of its first start, or free ones. */
export const furtherPorts = async (
  ports: Ports,
  stored: Pick<Ports, 'DIRECT_PORT' | 'POOLED_PORT'> | undefined,
): Promise<Ports> => ({
  ...ports,
  SQL_PORT: await reservePort(),
  DIRECT_PORT: stored ? await ifFree('DIRECT_PORT', stored.DIRECT_PORT) : await reservePort(),
  POOLED_PORT: stored ? await ifFree('POOLED_PORT', stored.POOLED_PORT) : await reservePort(),
});

async function ifFree(name: PortName, port: number): Promise<number> {
  if (await isFree(port)) return port;
  throw new Refusal(`port ${port} (${name}) is taken by another program`);
}

/** The standard port, or another one where that is taken. Either stays reserved while this process lives. */
const newPort = async (standard: number): Promise<number> =>
  (await tryReserve(standard)) ? standard : reservePort();
