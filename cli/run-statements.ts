import { Client, DatabaseError, Query } from 'pg';
import type { RunStatements } from '../mcp/rehearse-migration.ts';

/** Runs what the text contains. Rows are not kept: nobody reads them, and they may be more than fit into the memory. */
const run = (client: Client, text: string) =>
  new Promise<void>((resolve, reject) => {
    client
      .query(new Query(text))
      .on('row', () => {})
      .on('end', () => resolve())
      .on('error', reject);
  });

/**
 * Sends the statements to the server as they are. psql would not do: a text that contains one of its own commands makes it
 * run programs of this machine, and the text is that of an agent.
 */
export const runStatements: RunStatements = async (
  { direct_url, ca_certificate: ca },
  statements,
  signal,
) => {
  const url = new URL(direct_url);
  // The parameters of the URL would replace `ssl`, which verifies the server.
  url.search = '';
  const client = new Client({ connectionString: url.href, ssl: ca === null ? true : { ca } });
  // A session that ends is reported by the statement that it interrupts.
  client.on('error', () => {});
  const end = () => client.end().catch(() => {});
  signal.throwIfAborted();
  signal.addEventListener('abort', end, { once: true });
  try {
    await client.connect();
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
    signal.removeEventListener('abort', end);
    await end();
  }
};
