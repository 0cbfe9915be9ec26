import type { Miniflare } from 'miniflare';
import type { BindingCall } from './bindings-worker.ts';
import { BINDINGS_WORKER } from './worker.ts';

type D1Call = Extract<BindingCall, { database: string }>;
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
 * One request to workerd. Miniflare's own objects for bindings start a thread, and block this process while it makes
 * the request, several times for a call.
 */
async function callBinding(worker: Miniflare, call: BindingCall): Promise<unknown> {
  const url = await worker.unsafeGetDirectURL(BINDINGS_WORKER);
  const response = await fetch(url, { method: 'POST', body: JSON.stringify(call) });
  const result = await response.json();
  if (!response.ok) throw new Error(String(result));
  return result;
}

export function remoteD1(worker: Miniflare, database: string): D1Database {
  const send: Send = (method, statements) =>
    callBinding(worker, {
      database,
      method,
      statements: statements.map(({ query, values }) => ({ query, values })),
    });
  return {
    prepare: (query: string) => new RemoteStatement(send, query),
    batch: (statements: RemoteStatement[]) => send('batch', statements),
    exec: (query: string) => send('exec', [{ query, values: [] }]),
  } as unknown as D1Database;
}

/** A Durable Object of a Worker that has a D1: its methods, whose arguments and results are JSON. */
export const remoteObject = <T extends object>(worker: Miniflare, namespace: string, object: string): T =>
  new Proxy({} as T, {
    get: (_, method) =>
      // It is no promise.
      method === 'then'
        ? undefined
        : (...args: unknown[]) => {
            // JSON has no `undefined`: an argument that is left out has to stay left out.
            const given = args.slice(0, args.findLastIndex((value) => value !== undefined) + 1);
            return callBinding(worker, { namespace, object, method: String(method), args: given });
          },
  });
