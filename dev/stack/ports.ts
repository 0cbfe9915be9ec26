import { createServer } from 'node:net';
import { z } from 'zod';
import { Refusal } from './refusal.ts';
import type { StackSettings } from './settings.ts';

/**
 * Where each part listens unless told otherwise. `fixed`: credentials and accounts made at the first start
 * name this port, so it stays.
 */
const PORTS = {
  GATEWAY_PORT: { standard: 8787, fixed: false },
  IDP_PORT: { standard: 8790, fixed: true },
  DIRECT_PORT: { standard: 5432, fixed: true },
  POOLED_PORT: { standard: 6432, fixed: true },
} as const;

type PortName = keyof typeof PORTS;
const PORT_NAMES = Object.keys(PORTS) as PortName[];

export const Ports = z.record(z.enum(PORT_NAMES), z.int());
export type Ports = Record<PortName, number>;

/**
 * @param kept the ports of an earlier start
 * @throws Refusal when a port that was asked for, or that is kept, is taken
 */
export async function choosePorts(settings: StackSettings, kept: Ports | null): Promise<Ports> {
  const chosen = new Map<PortName, number>();
  for (const name of PORT_NAMES) {
    const asked = settings[name];
    if (kept && PORTS[name].fixed && asked !== undefined && asked !== kept[name]) {
      throw new Refusal(
        `${name} can't change to ${asked}: what is in ${settings.DEV_DIR} names port ${kept[name]} (set DEV_DIR to a new folder)`,
      );
    }
    const wanted = asked ?? kept?.[name];
    chosen.set(
      name,
      wanted === undefined ? await freePort(PORTS[name].standard, chosen) : await claimed(name, wanted),
    );
  }
  return Object.fromEntries(chosen) as Ports;
}

async function claimed(name: PortName, port: number): Promise<number> {
  if (await listens(port)) return port;
  throw new Refusal(`port ${port} (${name}) is taken by another program`);
}

async function freePort(standard: number, chosen: Map<PortName, number>): Promise<number> {
  const taken = new Set(chosen.values());
  if (!taken.has(standard) && (await listens(standard))) return standard;
  for (;;) {
    const port = await listens(0);
    if (port && !taken.has(port)) return port;
  }
}

/** The port, once it was seen that one can listen on it; null when it is taken. */
const listens = (port: number) =>
  new Promise<number | null>((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(null));
    server.listen(port, '127.0.0.1', () => {
      const address = server.address();
      server.close(() => resolve(typeof address === 'object' && address ? address.port : null));
    });
  });
