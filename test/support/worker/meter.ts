import type { Env } from '../../../edge/env.ts';

/** What has been used since the last reading. */
export interface Usage {
  /** D1: queries, batches counted once, and what they cost. */
  queries: number;
  rowsRead: number;
  rowsWritten: number;
  /** Calls of Durable Objects by binding. */
  objectCalls: Record<string, number>;
  /** Calls that have not ended yet. */
  pending: number;
}

export const NOTHING: Usage = { queries: 0, rowsRead: 0, rowsWritten: 0, objectCalls: {}, pending: 0 };
const OBJECTS = ['HOST_LINK', 'PROJECT_COORDINATOR', 'RATE_LIMITER'];

interface Metered {
  meta: { rows_read: number; rows_written: number };
}

/**
 * Bindings that count their use. Objects run in the isolate of the Worker, so their calls are counted with
 * its own.
 */
export class Meter {
  readonly env: Env;
  #usage = structuredClone(NOTHING);
  #pending = 0;

  constructor(env: Env) {
    const objects = OBJECTS.map((name) => [name, this.#namespace(name, env[name] as DurableObjectNamespace)]);
    this.env = { ...env, DB: this.#database(env.DB), ...Object.fromEntries(objects) };
  }

  /** Reads the meter and starts it anew. */
  read(): Usage {
    const usage = this.#usage;
    this.#usage = structuredClone(NOTHING);
    return { ...usage, pending: this.#pending };
  }

  async #counted<R extends Metered | Metered[]>(query: Promise<R>): Promise<R> {
    const result = await query;
    this.#usage.queries += 1;
    for (const { meta } of [result].flat() as Metered[]) {
      this.#usage.rowsRead += meta.rows_read;
      this.#usage.rowsWritten += meta.rows_written;
    }
    return result;
  }

  #database(database: D1Database): D1Database {
    const real = new WeakMap<object, D1PreparedStatement>();
    const statement = (of: D1PreparedStatement, text: string): object => {
      const metered = {
        bind: (...values: unknown[]) => statement(of.bind(...values), text),
        run: () => this.#counted(of.run()),
        all: () => this.#counted(of.all()),
        // `raw` does not report its cost. A read is repeated for it; a write must not be.
        raw: async () => {
          const { results } = await this.#counted(of.all<Record<string, unknown>>());
          return /^\s*select/i.test(text) ? of.raw() : results.map(Object.values);
        },
      };
      real.set(metered, of);
      return metered;
    };
    return {
      prepare: (text: string) => statement(database.prepare(text), text),
      batch: (statements: object[]) =>
        this.#counted(database.batch(statements.map((metered) => real.get(metered) as D1PreparedStatement))),
    } as unknown as D1Database;
  }

  #namespace(name: string, namespace: DurableObjectNamespace) {
    return {
      idFromName: (of: string) => namespace.idFromName(of),
      get: (id: DurableObjectId) => this.#stub(name, namespace.get(id) as unknown as Callable),
    };
  }

  /** @param way to the property that is being read, as RPC follows it: `monitor.last` is one call */
  #stub(name: string, object: Callable, way: readonly string[] = []): unknown {
    const call = (...args: unknown[]) => {
      this.#usage.objectCalls[name] = (this.#usage.objectCalls[name] ?? 0) + 1;
      const owner = way.slice(0, -1).reduce<Callable>((found, key) => found[key] as Callable, object);
      const result = (owner[way.at(-1) ?? ''] as (...given: unknown[]) => Promise<unknown>)(...args);
      this.#pending += 1;
      const end = () => {
        this.#pending -= 1;
      };
      result.then(end, end);
      return result;
    };
    return new Proxy(call, { get: (_, key) => this.#stub(name, object, [...way, String(key)]) });
  }
}

interface Callable {
  [key: string]: unknown;
}
