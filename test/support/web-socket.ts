import type { LookupFunction } from 'node:net';
import { Client, neonConfig, Pool, type PoolConfig } from '@neondatabase/serverless';
import { WebSocket } from 'ws';

/** A name in the certificate of a stack, which has no address of IPv6. */
const OVER_IPV6 = 'localhost';

/** Where a stack serves SQL over WebSocket, and the authority of its certificate. */
export interface SocketDoor {
  port: number;
  ca: string;
}

/**
 * Lets the unmodified client of Neon reach the WebSocket port of a stack, which is not 443. Node's own WebSocket takes no
 * authority, so it gets that of the `ws` package, as Neon's documentation has it for Node.
 */
export function openDoor(
  { port, ca }: SocketDoor,
  localAddress = '127.0.0.1',
  onOpened: (socket: WebSocket) => void = () => {},
): void {
  const isIpv6 = localAddress.includes(':');
  const lookup: LookupFunction = (_, { all }, done) =>
    all ? done(null, [{ address: '::1', family: 6 }]) : done(null, '::1', 6);
  neonConfig.wsProxy = (given, databasePort) => {
    const host = isIpv6 ? OVER_IPV6 : given;
    return `${host}:${port}/v2?address=${host}:${databasePort}`;
  };
  neonConfig.webSocketConstructor = class extends WebSocket {
    constructor(url: string | URL, protocols?: string | string[]) {
      super(String(url), protocols, { ca, localAddress, ...(isIpv6 && { lookup }) });
      onOpened(this);
    }
  };
}

/** A client of Neon that is connected; an end by the server does not end the test. */
export async function socketClient(url: string): Promise<Client> {
  const client = new Client(url);
  client.on('error', () => {});
  await client.connect();
  return client;
}

/** Runs a statement on a connection of its own. */
export async function socketQuery<R>(url: string, text: string): Promise<R[]> {
  const client = await socketClient(url);
  try {
    return (await client.query(text)).rows as R[];
  } finally {
    await client.end();
  }
}

export function socketPool(url: string, options: PoolConfig = {}): Pool {
  const pool = new Pool({ connectionString: url, ...options });
  pool.on('error', () => {});
  return pool;
}
