import { withConsole } from '../pooler/console.ts';
import type { AgentSettings } from '../settings.ts';

/** A client of the pooler over the network. */
export interface PooledClient {
  database: string;
  /** The three tell it from every other one. */
  pointer: string;
  address: string;
  port: number;
}

/** Clients that are logged in. @throws HostError POOLER_UNAVAILABLE */
export const readPooledClients = (settings: AgentSettings): Promise<PooledClient[]> =>
  withConsole(settings, async (console) => {
    const { rows } = await console.query<{ database: string; ptr: string; addr: string; port: number }>(
      'SHOW CLIENTS',
    );
    return rows
      .filter(({ addr }) => addr !== 'unix')
      .map(({ database, ptr, addr, port }) => ({
        database,
        pointer: ptr,
        address: addr,
        port: Number(port),
      }));
  });
