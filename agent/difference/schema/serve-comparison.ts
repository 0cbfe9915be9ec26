import type { MessagePort } from 'node:worker_threads';
import type { FromThread, Side, ToThread } from './comparison-messages.ts';
import { planSchemas } from './plan-schemas.ts';
import type { CatalogQuery } from './schema-record.ts';

/** Compares two schemas in this thread, which has no session of its own: it sends its queries to the agent. */
export async function serveComparison(port: MessagePort): Promise<void> {
  const waiting = new Map<number, (rows: ToThread['rows']) => void>();
  port.on('message', ({ query, rows }: ToThread) => {
    waiting.get(query)?.(rows);
    waiting.delete(query);
  });
  let queries = 0;
  const send = (message: FromThread) => port.postMessage(message);
  const ask =
    (side: Side): CatalogQuery =>
    (text, values) =>
      new Promise((resolve) => {
        queries += 1;
        waiting.set(queries, (rows) => resolve({ rows }));
        send({ query: queries, side, text, values });
      });
  send({ difference: await planSchemas(ask('here'), ask('there')) });
  port.close();
}
