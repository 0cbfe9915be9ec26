import type { MessagePort } from 'node:worker_threads';
import type { CatalogQuery, FromThread, Outcome, SideName, Task, ToThread } from './comparison-messages.ts';
import { planSchemas, readSchema, restoreSchema, storeSchema } from './plan-schemas.ts';

/** Compares two schemas in this thread, which has no session of its own: it sends its queries to the agent. */
export async function serveComparison(port: MessagePort, { before }: Task): Promise<void> {
  const waiting = new Map<number, (rows: ToThread['rows']) => void>();
  port.on('message', ({ query, rows }: ToThread) => {
    waiting.get(query)?.(rows);
    waiting.delete(query);
  });
  const send = (message: FromThread) => port.postMessage(message);
  let queries = 0;
  const ask =
    (side: SideName): CatalogQuery =>
    (text, values) =>
      new Promise((resolve) => {
        queries += 1;
        waiting.set(queries, (rows) => resolve({ rows }));
        send({ query: queries, side, text, values });
      });

  async function outcome(): Promise<Outcome> {
    const after = await readSchema(ask('after'));
    if (before === null) return { difference: null, stored: storeSchema(after) };
    const other = before === 'session' ? await readSchema(ask('before')) : restoreSchema(before.stored);
    return { difference: planSchemas(other, after), stored: null };
  }

  send({ outcome: await outcome() });
  port.close();
}
