import type { Miniflare } from 'miniflare';
import type { D1Call } from '../worker/d1-worker.ts';
import { D1_WORKER } from '../worker/worker.ts';

type Send = (method: D1Call['method'], statements: D1Call['statements']) => Promise<unknown>;

class RemoteStatement {
  readonly #send: Send;
  readonly query: string;
  readonly values: unknown[];

  constructor(send: Send, query: string, values: unknown[] = []) {
    this.#send = send;
    this.query = query;
    this.values = values;
  }

  bind(...values: unknown[]): RemoteStatement {
    return new RemoteStatement(this.#send, this.query, values);
  }

  all(): Promise<unknown> {
    return this.#send('all', [this]);
  }

  run(): Promise<unknown> {
    return this.all();
  }

  raw(): Promise<unknown> {
    return this.#send('raw', [this]);
  }

  async first(column?: string): Promise<unknown> {
    const { results } = (await this.all()) as { results: Record<string, unknown>[] };
    const row = results[0] ?? null;
    return row && column !== undefined ? row[column] : row;
  }
}

/**
 * The D1 of a Worker. Each of its calls is a request to workerd. Miniflare's own object for it blocks this
 * process while a thread makes the request, three times for a query.
 */
export function remoteD1(worker: Miniflare, database: string): D1Database {
  const send: Send = async (method, statements) => {
    const { fetch } = await worker.getWorker(D1_WORKER);
    const body: D1Call = {
      database,
      method,
      statements: statements.map(({ query, values }) => ({ query, values })),
    };
    const response = await fetch('http://d1/', { method: 'POST', body: JSON.stringify(body) });
    const result = await response.json();
    if (!response.ok) throw new Error(String(result));
    return result;
  };
  return {
    prepare: (query: string) => new RemoteStatement(send, query),
    batch: (statements: RemoteStatement[]) => send('batch', statements),
    exec: (query: string) => send('exec', [{ query, values: [] }]),
  } as unknown as D1Database;
}
