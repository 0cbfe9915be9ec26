import { once } from 'node:events';
import { type FSWatcher, watch } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect } from 'vitest';
import type { Method } from '../../../shared/protocol/operations.ts';
import { Api, type ApiResponse } from '../api.ts';
import { ContractError } from '../contract.ts';
import { eventually } from '../eventually.ts';
import { freePort } from '../free-port.ts';
import { connectOnHost } from '../host/host-session.ts';
import { violations } from '../records/invariants.ts';
import { RETRYABLE_CODES } from '../retryable-codes.ts';
import { readRecords, type Sources, takeSnapshot } from '../snapshot.ts';
import { type Victim as AnyVictim, crash, partOf } from './crash.ts';
import { LinkProxy } from './link-proxy.ts';
import { type Barrier, hasLanded, type Moment } from './moments.ts';
import { type Stack, startStack, UNLIMITED } from './stack.ts';
import { sourcesOf } from './stack-sources.ts';

/**
 * What is killed. `postgres` is every process of the server; `postmaster` is its first process, whose death
 * the others notice at their next wait and clean up after. Only the former leaves half of a database behind.
 */
export const VICTIMS = [
  'agent',
  'gateway',
  'postgres',
  'postmaster',
  'pgbouncer',
] as const satisfies AnyVictim[];
export type Victim = (typeof VICTIMS)[number];

/** Whether a clone may have to be begun a second time: the end of its server interrupted the first. */
export const mayCloneTwice = (victim: Victim) => partOf(victim) === 'postgres';

/** From the instant at which everything is up again. It is there to end a test that would wait for ever. */
const AT_REST_WITHIN_S = 60;
const MOMENT_WITHIN_MS = 60_000;
const RETRY_EVERY_MS = 50;
const BLOCKED_POLL_MS = 5;

/** A whole stack whose link goes through a proxy. Only the test restarts its parts. */
export class FaultStage {
  readonly api: Api;
  readonly #stack: Stack;
  readonly #proxy: LinkProxy;
  readonly #sources: Sources;
  readonly #watcher: FSWatcher;
  readonly #directories = new Set<string>();
  /** Release the table locks. */
  #unblock: (() => Promise<void>)[] = [];
  #copyHeld: () => Promise<void> = async () => {};

  private constructor(stack: Stack, proxy: LinkProxy, token: string) {
    const { base_url, data_dir } = stack.state;
    this.api = new Api(base_url, token);
    this.#stack = stack;
    this.#proxy = proxy;
    this.#sources = sourcesOf(stack);
    this.#watcher = watch(join(data_dir, 'base'), (_event, name) => {
      if (name && /^\d+$/.test(name)) this.#directories.add(name);
    });
  }

  static async open(): Promise<FaultStage> {
    const gatewayPort = String(await freePort());
    const proxy = await LinkProxy.start(`http://127.0.0.1:${gatewayPort}`);
    // The watchdogs keep locks on the catalogs that a moment locks to hold a step.
    const env = { GATEWAY_PORT: gatewayPort, GATEWAY_URL: proxy.url, GUARDS: 'off', ...UNLIMITED };
    const stack = await startStack({ restarts: false, env });
    return new FaultStage(stack, proxy, await stack.token({ tenant: 'faults' }));
  }

  async close(): Promise<void> {
    this.#watcher.close();
    await this.#stack.stop();
    await this.#proxy.stop();
  }

  /**
   * Databases that PostgreSQL has begun to create since the stage was opened, finished or not. Each begins
   * with a directory, so this counts clones that no call reports.
   */
  get databasesBegun(): number {
    return this.#directories.size;
  }

  /** After it, a crash leaves sequences where they are; otherwise they skip what was logged ahead. */
  async checkpoint(): Promise<void> {
    const session = await connectOnHost(this.#sources.postgres, 'branchgate');
    await session.query('checkpoint');
    await session.end();
  }

  /**
   * Kills a part at a moment of a request's life, starts it again, and waits until everything is at rest.
   * Two clients send the request: one before the fault, one right after it.
   * @returns the responses to them
   */
  async strike<B>(
    victim: Victim,
    moment: Moment,
    request: () => Promise<ApiResponse<B>>,
  ): Promise<ApiResponse<B>[]> {
    const first = onFirstCall(() => insist(request));
    await this.reach(moment, first);
    return this.crash([victim], () => [first(), insist(request)]);
  }

  /** Waits for the moment. @throws Error when it does not come, or a kill would not land inside it */
  async reach(moment: Moment, begin: () => Promise<unknown>): Promise<void> {
    this.#proxy.forgetProgress();
    const scene = {
      proxy: this.#proxy,
      begin,
      block: (barrier: Barrier) => this.#block(barrier),
      databaseBegun: () => once(this.#watcher, 'change'),
      jobsEnded: () => this.#jobsEnded(),
    };
    try {
      await within(MOMENT_WITHIN_MS, moment.reach(scene), `the moment ${moment.name} did not come`);
      for (const landing of moment.landings) {
        const progress = this.#proxy.progressOf(landing.method);
        expect(hasLanded(progress, landing), `${moment.name}: ${JSON.stringify(progress)}`).toBe(true);
      }
    } catch (error) {
      await this.#release();
      throw error;
    }
  }

  /**
   * Kills parts in parallel, starts them again, and waits until everything is at rest.
   * @param meanwhile called when all are dead and what was held is released
   * @returns the responses that `meanwhile` waits for
   */
  async crash<T>(victims: readonly Victim[], meanwhile: () => Promise<T>[]): Promise<T[]> {
    await Promise.all(victims.map((victim) => crash(this.#stack, victim)));
    await this.#release();
    const answers = Promise.all(meanwhile());
    // A server does not start while orphans of its predecessor use its memory.
    await Promise.all(victims.map((victim) => eventually(() => this.#stack.start(partOf(victim)))));
    await within(AT_REST_WITHIN_S * 1000, answers, 'the clients have no answer');
    await this.atRest();
    await this.#stack.untilReady();
    return answers;
  }

  /**
   * Locks a table until `crash` has killed its victims.
   * @returns resolves when the statement waits for the lock
   */
  async #block({ table, statement, mode = 'share' }: Barrier): Promise<() => Promise<void>> {
    const session = await connectOnHost(this.#sources.postgres, 'branchgate');
    this.#unblock.push(() => session.end().catch(() => {}));
    await session.query('begin');
    await session.query(`lock table ${table} in ${mode} mode`);
    const isWaiting = async () => {
      // Within a transaction PostgreSQL shows the same activity again unless its snapshot is cleared.
      await session.query('select pg_stat_clear_snapshot()');
      // Sessions of the platform hide their statements, so any statement of theirs that waits for the table counts.
      const { rowCount } = await session.query(
        `select from pg_locks left join pg_stat_activity using (pid)
         where not granted and relation = $1::regclass and coalesce(nullif(query, ''), $2) like $2`,
        [table, statement],
      );
      return rowCount !== 0;
    };
    return async () => {
      while (!(await isWaiting())) await sleep(BLOCKED_POLL_MS);
    };
  }

  /**
   * Keeps PostgreSQL from finishing any `CREATE DATABASE`, which records the dependencies of its copy in this
   * table. The creation then outlives the agent or gateway that began it, as a large one does.
   * @returns releases the creations
   */
  async holdCopies(): Promise<() => Promise<void>> {
    const session = await connectOnHost(this.#sources.postgres, 'branchgate');
    // PostgreSQL would cancel a waiting creation some seconds after the end of its client.
    await session.query('alter system set client_connection_check_interval = 0');
    await session.query('select pg_reload_conf()');
    await session.end();
    const copyHeld = await this.#block({ table: 'pg_shdepend', statement: 'CREATE DATABASE%' });
    const [release] = this.#unblock.splice(0);
    this.#copyHeld = copyHeld;
    return async () => release?.();
  }

  /** Resolves when a `CREATE DATABASE` waits to be released. */
  copyHeld(): Promise<void> {
    return within(MOMENT_WITHIN_MS, this.#copyHeld(), 'no copy is held');
  }

  /** Resolves when the gateway has sent the next call of this operation. */
  nextCall(method: Method): Promise<void> {
    return this.#proxy.watch({ method, side: 'call' });
  }

  /**
   * Waits until records and host agree.
   * @throws Error that lists the remaining differences
   */
  async atRest(): Promise<void> {
    // The records are a file, and a look at the host takes several sessions.
    await this.#jobsEnded();
    await eventually(
      async () => expect(violations(await takeSnapshot(this.#sources))).toEqual([]),
      AT_REST_WITHIN_S,
    );
  }

  /** Lets go of frames and tables. */
  async #release(): Promise<void> {
    this.#proxy.letGo();
    for (const unblock of this.#unblock.splice(0)) await unblock();
  }

  async #jobsEnded(): Promise<void> {
    await eventually(async () => {
      const { jobs } = readRecords(this.#sources.d1File);
      expect(jobs.filter(({ status }) => status === 'queued' || status === 'running')).toEqual([]);
    });
  }
}

function onFirstCall<T>(action: () => T): () => T {
  let result: { value: T } | undefined;
  return () => {
    result ??= { value: action() };
    return result.value;
  };
}

const within = <T>(milliseconds: number, work: Promise<T>, complaint: string): Promise<T> =>
  Promise.race([
    work,
    sleep(milliseconds, undefined, { ref: false }).then(() => Promise.reject(new Error(complaint))),
  ]);

/** Repeats a request after a broken connection and after a response without a definite outcome. */
export async function insist<B>(request: () => Promise<ApiResponse<B>>): Promise<ApiResponse<B>> {
  for (;;) {
    const answer = await request().catch((error: Error) => {
      if (error instanceof ContractError) throw error;
      return null;
    });
    const { error } = (answer?.body ?? {}) as { error?: string };
    if (answer && !RETRYABLE_CODES.includes(error ?? '')) return answer;
    await sleep(RETRY_EVERY_MS);
  }
}
