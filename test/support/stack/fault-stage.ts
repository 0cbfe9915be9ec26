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
import type { Moment } from './moments.ts';
import { type Stack, startStack, UNLIMITED } from './stack.ts';
import { sourcesOf } from './stack-sources.ts';

/**
 * What dies at each moment. Of PostgreSQL either every process, or its first alone: the others notice at their
 * next wait and clean up as they go, so it is the former that leaves half of a database behind.
 */
export const VICTIMS = [
  'agent',
  'gateway',
  'postgres',
  'postmaster',
  'pgbouncer',
] as const satisfies AnyVictim[];
export type Victim = (typeof VICTIMS)[number];

/** Promised from the moment on when everything is up again. */
const AT_REST_WITHIN_S = 30;
const MOMENT_WITHIN_MS = 15_000;
const ASK_AGAIN_EVERY_MS = 50;

/** A whole stack whose link goes through a proxy, and of which nothing is started again but by the test. */
export class FaultStage {
  readonly api: Api;
  readonly #stack: Stack;
  readonly #proxy: LinkProxy;
  readonly #sources: Sources;
  readonly #watcher: FSWatcher;
  readonly #directories = new Set<string>();

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
    const env = { GATEWAY_PORT: gatewayPort, GATEWAY_URL: proxy.url, ...UNLIMITED };
    const stack = await startStack({ restarts: false, env });
    return new FaultStage(stack, proxy, await stack.token({ tenant: 'faults' }));
  }

  async close(): Promise<void> {
    this.#watcher.close();
    await this.#stack.stop();
    await this.#proxy.stop();
  }

  /**
   * Databases that PostgreSQL has begun to make since the stage was opened, finished or not: each is born
   * with a directory, so clones are seen that nobody was told of.
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
   * @returns their answers
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

  /** Waits for the moment. @throws Error when it does not come */
  async reach(moment: Moment, begin: () => Promise<unknown>): Promise<void> {
    const scene = {
      proxy: this.#proxy,
      begin,
      databaseBegun: () => once(this.#watcher, 'change'),
      jobsEnded: () => this.#jobsEnded(),
    };
    await within(MOMENT_WITHIN_MS, moment.reach(scene), `the moment ${moment.name} did not come`);
  }

  /**
   * Kills parts at once, starts them again, and waits until everything is at rest.
   * @param meanwhile called when all are dead and what was held is let go
   * @returns the answers that `meanwhile` waits for
   */
  async crash<T>(victims: readonly Victim[], meanwhile: () => Promise<T>[]): Promise<T[]> {
    await Promise.all(victims.map((victim) => crash(this.#stack, victim)));
    this.#proxy.letGo();
    const answers = Promise.all(meanwhile());
    // A server whose orphans still use its memory does not start; whoever supervises it tries again.
    await Promise.all(victims.map((victim) => eventually(() => this.#stack.start(partOf(victim)))));
    await within(AT_REST_WITHIN_S * 1000, answers, 'the clients have no answer');
    await this.atRest();
    await this.#stack.untilReady();
    return answers;
  }

  /**
   * Keeps PostgreSQL from finishing any `CREATE DATABASE`: each notes the dependencies of its copy in this
   * table. So a creation outlives whoever asked for it, as a large one does.
   * @returns lets them go on
   */
  async holdCopies(): Promise<() => Promise<void>> {
    const session = await connectOnHost(this.#sources.postgres, 'branchgate');
    await session.query('begin');
    await session.query('lock table pg_shdepend in share mode');
    return () => session.end();
  }

  /** Resolves when a `CREATE DATABASE` waits to be let go on. */
  async copyHeld(): Promise<void> {
    const session = await connectOnHost(this.#sources.postgres, 'branchgate');
    await eventually(async () => {
      const { rowCount } = await session.query(
        `select from pg_stat_activity where query like 'CREATE DATABASE%' and wait_event_type = 'Lock'`,
      );
      expect(rowCount).toBe(1);
    });
    await session.end();
  }

  /** Resolves when the gateway has called for this operation once more. */
  nextCall(method: Method): Promise<void> {
    return this.#proxy.watch({ method, side: 'call' });
  }

  /** Waits until records and host agree; what they do not agree on in time is the error. */
  async atRest(): Promise<void> {
    await eventually(
      async () => expect(violations(await takeSnapshot(this.#sources))).toEqual([]),
      AT_REST_WITHIN_S,
    );
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

/** Sends a request as a stubborn client does: again after a broken connection and after an undecided answer. */
export async function insist<B>(request: () => Promise<ApiResponse<B>>): Promise<ApiResponse<B>> {
  for (;;) {
    const answer = await request().catch((error: Error) => {
      if (error instanceof ContractError) throw error;
      return null;
    });
    const { error } = (answer?.body ?? {}) as { error?: string };
    if (answer && !RETRYABLE_CODES.includes(error ?? '')) return answer;
    await sleep(ASK_AGAIN_EVERY_MS);
  }
}
