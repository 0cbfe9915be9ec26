import type { Env } from '../../../edge/env.ts';

/** A call of an object's method or of D1. */
export interface Trip {
  /** `<binding>.<method>`. */
  to: string;
  /** How many trips one after the other came before it. */
  after: number;
}

/** What one request cost. */
export interface Tally {
  /** How many trips of it followed one another. */
  sequential: number;
  trips: Trip[];
}

/** Of the answer, where its tally is. */
export const TALLY_HEADER = 'Test-Trips';

const OBJECTS = ['HOST_LINK', 'PROJECT_COORDINATOR', 'RATE_LIMITER', 'CHALLENGES', 'WEBHOOK_SENDER'];

/** Of a delay that is waited for at once. Milliseconds. */
const HOP_MS = 4;

/** A busy machine may stop the isolate for longer than the whole delay: only one hop ends then, before calls beside it set out. */
async function pass(delayMs: number): Promise<void> {
  // Without a delay a call still sets out after what has begun beside it.
  const hops = Math.max(1, Math.ceil(delayMs / HOP_MS));
  for (let hop = 0; hop < hops; hop++) await new Promise((resolve) => setTimeout(resolve, delayMs / hops));
}

/**
 * Bindings whose every call sets out after a delay, and the trips that this makes, one request at a time. A trip that
 * begins while another is on its way goes beside it; one that begins after the end of another comes after it. Objects
 * run in the Worker's isolate here, so the trips that they make themselves are counted with the others.
 */
export class Trips {
  readonly #env: Env;
  readonly #delayMs: number;
  #sequential = 0;
  #trips: Trip[] = [];

  constructor(env: Env, delayMs: number) {
    this.#delayMs = delayMs;
    const objects = OBJECTS.map((name) => [name, this.#namespace(name, env[name] as DurableObjectNamespace)]);
    this.#env = { ...env, DB: this.#database(env.DB), ...Object.fromEntries(objects) };
  }

  get env(): Env {
    return this.#env;
  }

  begin(): void {
    this.#sequential = 0;
    this.#trips = [];
  }

  tally(): Tally {
    return { sequential: this.#sequential, trips: this.#trips };
  }

  async #make<T>(to: string, call: () => Promise<T>): Promise<T> {
    const after = this.#sequential;
    this.#trips.push({ to, after });
    await pass(this.#delayMs);
    this.#sequential = Math.max(this.#sequential, after + 1);
    return call();
  }

  #namespace(name: string, namespace: DurableObjectNamespace) {
    return {
      idFromName: (of: string) => namespace.idFromName(of),
      get: (id: DurableObjectId) => this.#stub(name, namespace.get(id) as unknown as Callable),
    };
  }

  /** @param way to the property that is being read, as RPC follows it: `monitor.last` is one call */
  #stub(to: string, object: Callable, way: readonly string[] = []): unknown {
    const call = (...args: unknown[]) =>
      this.#make([to, ...way].join('.'), () => {
        const owner = way.slice(0, -1).reduce<Callable>((found, key) => found[key] as Callable, object);
        return (owner[way.at(-1) ?? ''] as (...given: unknown[]) => Promise<unknown>)(...args);
      });
    return new Proxy(call, { get: (_, key) => this.#stub(to, object, [...way, String(key)]) });
  }

  #database(database: D1Database) {
    const bound = new WeakMap<object, D1PreparedStatement>();
    const statement = (real: D1PreparedStatement): object => {
      const delayed = {
        bind: (...values: unknown[]) => statement(real.bind(...values)),
        run: () => this.#make('DB.run', () => real.run()),
        all: () => this.#make('DB.all', () => real.all()),
        raw: () => this.#make('DB.raw', () => real.raw()),
        first: () => this.#make('DB.first', () => real.first()),
      };
      bound.set(delayed, real);
      return delayed;
    };
    return {
      prepare: (query: string) => statement(database.prepare(query)),
      batch: (statements: object[]) =>
        this.#make('DB.batch', () =>
          database.batch(statements.map((delayed) => bound.get(delayed) as D1PreparedStatement)),
        ),
    } as unknown as D1Database;
  }
}

interface Callable {
  [key: string]: unknown;
}
