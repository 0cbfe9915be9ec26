import { AsyncLocalStorage } from 'node:async_hooks';
import type { Env } from '../../../edge/env.ts';
import { type Bound, isWrite, prepare, Replica, Session } from './replicated-d1.ts';

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

/** Of the request: the replica first repeats everything. */
export const CATCH_UP_HEADER = 'Test-Catch-Up';

const OBJECTS = ['HOST_LINK', 'PROJECT_COORDINATOR', 'RATE_LIMITER', 'CHALLENGES', 'WEBHOOK_SENDER'];

/** Of one part of a delay. Milliseconds. */
const HOP_MS = 4;

/**
 * A busy machine may stop the isolate for longer than the whole delay: only one hop ends then, before calls
 * beside it set out.
 */
async function pass(delayMs: number): Promise<void> {
  // Without a delay a call still sets out after what has begun beside it.
  const hops = Math.max(1, Math.ceil(delayMs / HOP_MS));
  for (let hop = 0; hop < hops; hop++) await new Promise((resolve) => setTimeout(resolve, delayMs / hops));
}

/** Of the request that has called an object, whose work may outlast it. */
const callers = new AsyncLocalStorage<Tally>();

/**
 * Counts what objects of a class do by themselves, and what they do after a call, with no later request.
 * @param current of the present request
 */
export function attribute(prototype: object, current: () => Tally): void {
  const parts = new Set<object>();
  for (const [name, { value, get }] of membersOf(prototype)) {
    if (get)
      Object.defineProperty(prototype, name, {
        get() {
          const part = get.call(this);
          const ofPart = Object.getPrototypeOf(part);
          if (!parts.has(ofPart)) attribute(ofPart, current);
          parts.add(ofPart);
          return part;
        },
      });
    else if (typeof value === 'function')
      Object.defineProperty(prototype, name, {
        value(...args: unknown[]) {
          const tally = name === 'alarm' ? { sequential: 0, trips: [] } : (callers.getStore() ?? current());
          return callers.run(tally, () => value.apply(this, args));
        },
      });
  }
}

/** Of the class and those that it extends, up to the platform's own. */
function membersOf(prototype: object): Map<string, PropertyDescriptor> {
  const members = new Map<string, PropertyDescriptor>();
  for (let level = prototype; !PLATFORM.has(level.constructor.name); level = Object.getPrototypeOf(level))
    for (const [name, member] of Object.entries(Object.getOwnPropertyDescriptors(level)))
      if (name !== 'constructor' && !members.has(name)) members.set(name, member);
  return members;
}

const PLATFORM = new Set(['DurableObject', 'RpcTarget', 'Object']);

/**
 * Bindings whose every call sets out after a delay, and the trips that this makes, one request at a time. A
 * trip that begins while another is on its way goes beside it; one that begins after the end of another comes
 * after it. Objects run in the Worker's isolate here, so the trips that they make themselves are counted with
 * the others.
 */
export class Trips {
  readonly #env: Env;
  readonly #delayMs: number;
  /** Of the replica, which is near. */
  readonly #replicaMs: number;
  /** A second copy of D1, if the test has one under `REPLICA`. */
  readonly replica: Replica | null;
  /** Of the present request. */
  #tally: Tally = { sequential: 0, trips: [] };

  constructor(env: Env, delayMs: number) {
    this.#delayMs = delayMs;
    this.#replicaMs = Number(env.REPLICA_DELAY_MS ?? 0);
    const replica = env.REPLICA as D1Database | undefined;
    this.replica = replica ? new Replica(replica, Number(env.REPLICA_LAG_MS)) : null;
    const objects = OBJECTS.map((name) => [name, this.#namespace(name, env[name] as DurableObjectNamespace)]);
    this.#env = { ...env, DB: this.#database(env.DB), ...Object.fromEntries(objects) };
  }

  get env(): Env {
    return this.#env;
  }

  /** Counts the trips of a request. */
  request<T>(work: () => Promise<T>): Promise<T> {
    this.#tally = { sequential: 0, trips: [] };
    return callers.run(this.#tally, work);
  }

  tally(): Tally {
    return this.#tally;
  }

  async #make<T>(to: string, call: () => Promise<T>, delayMs = this.#delayMs): Promise<T> {
    // They are sent after the response of an earlier request, or after the end of its stream.
    if (to.endsWith('.giveBack') || to.endsWith('.release')) return call();
    const tally = callers.getStore() ?? this.#tally;
    const after = tally.sequential;
    tally.trips.push({ to, after });
    await pass(delayMs);
    tally.sequential = Math.max(tally.sequential, after + 1);
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
    const bounds = new WeakMap<object, Bound>();
    const boundOf = (statement: object) => bounds.get(statement) as Bound;

    const query = async <T>(
      name: string,
      statements: readonly Bound[],
      session: Session | null,
      primary: Copy,
      execute: (on: Copy) => Promise<T>,
    ): Promise<T> => {
      const replica = this.replica;
      const isWriting = statements.some(isWrite);
      if (replica) await replica.catchUp();
      if (replica && session?.admits(replica) && !isWriting) {
        const { bookmark } = replica;
        const read = () => execute(replica.database);
        const result = await this.#make(`REPLICA.${name}`, read, this.#replicaMs);
        session.see(bookmark);
        return result;
      }
      return this.#make(`DB.${name}`, async () => {
        const result = await execute(primary);
        if (isWriting) replica?.follow(statements);
        if (replica) session?.see(replica.newest);
        return result;
      });
    };

    /** @param session null: none, or one of D1 itself, which is then `on` */
    const copy = (session: Session | null, on: Copy) => {
      const statement = (bound: Bound): object => {
        const call = <T>(name: string, execute: (real: D1PreparedStatement) => Promise<T>) =>
          query(name, [bound], session, on, (chosen) => execute(prepare(chosen, bound)));
        const delayed = {
          bind: (...values: unknown[]) => statement({ ...bound, values }),
          run: () => call('run', (real) => real.run()),
          all: () => call('all', (real) => real.all()),
          raw: () => call('raw', (real) => real.raw()),
          first: () => call('first', (real) => real.first()),
        };
        bounds.set(delayed, bound);
        return delayed;
      };
      return {
        prepare: (text: string) => statement({ query: text, values: [] }),
        batch: (statements: object[]) => {
          const batch = statements.map(boundOf);
          return query('batch', batch, session, on, (chosen) =>
            chosen.batch(batch.map((bound) => prepare(chosen, bound))),
          );
        },
        getBookmark: () => (session ?? (on as D1DatabaseSession)).getBookmark(),
        withSession: (constraint: string): object =>
          this.replica
            ? copy(new Session(constraint), database)
            : copy(null, database.withSession(constraint)),
      };
    };
    return copy(null, database) as unknown as D1Database;
  }
}

type Copy = Pick<D1Database, 'prepare' | 'batch'>;

interface Callable {
  [key: string]: unknown;
}
