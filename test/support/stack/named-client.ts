import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';

/**
 * A client in a process of its own, which connects by the name of its URL again and again, verifies the server by that
 * name, and counts in a row of its own. Its parent is its resolver, and is sent each visit.
 */

/** What the parent sends first. */
export interface Client {
  /** Its row of the table `visit (who text, n int)`. */
  who: string;
  url: string;
  /** The authorities of the servers, as PEM. */
  ca: string[];
}

/** An attempt to connect and to count. */
export interface Visit {
  /** The port that the server itself has, not the one of the URL; null if it failed. */
  port: string | null;
  /** The row as the server has it, and what it can be after the commits that were confirmed. */
  n: number;
  least: number;
  most: number;
  error?: string;
}

const EVERY_MS = 100;
const WITHIN_MS = 5_000;

// The parent has ended, in whatever way: so must this.
process.on('disconnect', () => process.exit());
const send = (message: { resolve: string } | { visit: Visit }) => process.send?.(message);

async function addressOf(name: string): Promise<string> {
  send({ resolve: name });
  const [address] = (await once(process, 'message')) as [string];
  return address;
}

const [{ who, url, ca }] = (await once(process, 'message')) as [Client];
const { hostname, port, username, password, pathname } = new URL(url);
let confirmed = 0;
let unknown = 0;

async function visit(): Promise<Visit> {
  const client = new pg.Client({
    host: await addressOf(hostname),
    port: Number(port),
    user: username,
    database: pathname.slice(1),
    password: decodeURIComponent(password),
    connectionTimeoutMillis: WITHIN_MS,
    query_timeout: WITHIN_MS,
    ssl: { ca, servername: hostname },
  });
  client.on('error', () => {});
  const bounds = () => ({ least: confirmed + 1, most: confirmed + unknown + 1 });
  try {
    await client.connect();
    const expected = bounds();
    unknown += 1;
    const { rows } = await client.query<{ n: number; port: string }>(
      "update visit set n = n + 1 where who = $1 returning n, current_setting('port') as port",
      [who],
    );
    unknown -= 1;
    confirmed += 1;
    return { port: rows[0]?.port ?? null, n: rows[0]?.n ?? 0, ...expected };
  } catch (error) {
    return { port: null, n: 0, ...bounds(), error: String(error) };
  } finally {
    await client.end().catch(() => {});
  }
}

for (;;) {
  send({ visit: await visit() });
  await sleep(EVERY_MS);
}
