import { z } from 'zod';
import { Refusal } from './refusal.ts';
import { isFree, reservePort, tryReserve } from './reserve-port.ts';
import type { StackSettings } from './settings.ts';

/**
 * The port of each part, unless a setting names another. `fixed`: credentials and accounts of the first start
 * contain this port, so it cannot change.
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
 * @param stored the ports of an earlier start
 * @throws Refusal when a port that is asked for or stored is taken
 */
export async function choosePorts(settings: StackSettings, stored: Ports | null): Promise<Ports> {
  const chosen = new Map<PortName, number>();
  for (const name of PORT_NAMES) {
    const asked = settings[name];
    if (stored && PORTS[name].fixed && asked !== undefined && asked !== stored[name]) {
      throw new Refusal(
        `${name} can't change to ${asked}: what is in ${settings.DEV_DIR} names port ${stored[name]} (set DEV_DIR to a new folder)`,
      );
    }
    const wanted = asked ?? stored?.[name];
    chosen.set(name, wanted === undefined ? await newPort(PORTS[name].standard) : await ifFree(name, wanted));
  }
  return Object.fromEntries(chosen) as Ports;
}

async function ifFree(name: PortName, port: number): Promise<number> {
  if (await isFree(port)) return port;
  throw new Refusal(`port ${port} (${name}) is taken by another program`);
}

/** The standard port, or another one where that is taken. Either stays reserved while this process lives. */
const newPort = async (standard: number): Promise<number> =>
  (await tryReserve(standard)) ? standard : reservePort();
