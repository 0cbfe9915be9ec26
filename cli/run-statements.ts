import { Socket } from 'node:net';
import { Client, DatabaseError, Query } from 'pg';
import type { RunStatements } from '../mcp/rehearse-migration.ts';

const CONNECT_MS = 10_000;

/**
 * Runs what the text contains. Rows are not kept: nobody reads them, and they may be more than fit into the
 * memory.
 */
const run = (client: Client, text: string) =>
  new Promise<void>((resolve, reject) => {
    client
      .query(new Query(text))
      .on('row', () => {})
      .on('end', () => resolve())
      .on('error', reject);
  });

/**
 * Sends the statements to the server as they are. psql would not do: a text that contains one of its own
 * commands makes it run programs of this machine, and the text is that of an agent.
 */
export const runStatements: RunStatements = async (
  { direct_url, ca_certificate: ca },
  statements,
  signal,
) => {
  const url = new URL(direct_url);
  // The parameters of the URL would replace `ssl`, which verifies the server.
  url.search = '';
  const socket = new Socket();
  const client = new Client({
    connectionString: url.href,
    ssl: ca === null ? true : { ca },
    stream: () => socket,
    connectionTimeoutMillis: CONNECT_MS,
    keepAlive: true,
  });
  // A session that ends is reported by the statement that it interrupts.
  client.on('error', () => {});
  // `client.end` would wait for a server that does not respond.
  const cut = () => socket.destroy();
  signal.throwIfAborted();
  signal.addEventListener('abort', cut, { once: true });
  try {
    await client.connect().catch((error: Error) => {
      signal.throwIfAborted();
      throw error;
    });
    for (const [at, statement] of statements.entries()) {
      try {
        await run(client, statement);
      } catch (error) {
        signal.throwIfAborted();
        const { message } = error as Error;
        const sqlstate = error instanceof DatabaseError ? (error.code ?? null) : null;
        return { statement: at + 1, message, sqlstate };
      }
    }
    return null;
  } finally {
    signal.removeEventListener('abort', cut);
    await client.end().catch(() => {});
  }
};
