import { chmodSync, type FSWatcher, globSync, mkdtempSync, rmSync, watch } from 'node:fs';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect } from 'vitest';
import { rulesFolder } from '../../agent/settings.ts';
import { devFolder } from '../../dev/dev-folder.ts';
import { hostFolder } from '../../dev/host-folder.ts';
import { accessToken, scopeNames } from '../../dev/identity-provider/access-token.ts';
import { readSettings } from '../../dev/settings.ts';
import { type Stack, startStack } from '../../dev/stack.ts';
import { type Answer, Api } from './api.ts';
import { eventually } from './eventually.ts';
import { violations } from './invariants.ts';
import { LinkProxy } from './link-proxy.ts';
import type { Moment } from './moments.ts';
import { readRecords, type Sources, takePicture } from './picture.ts';


/** The parts of which each dies at each moment. */
export const VICTIMS = ['agent', 'gateway', 'postgres'] as const;
type Victim = (typeof VICTIMS)[number] | 'pgbouncer';

/** Promised from the moment on when everything is up again. */
const AT_REST_WITHIN_S = 30;
const ASK_AGAIN_EVERY_MS = 50;

/** A whole stack whose link goes through a proxy, and of which nothing is started again but by the test. */
export class FaultStage {
  readonly stack: Stack;
  readonly proxy: LinkProxy;
  readonly api: Api;
  readonly sources: Sources;
  readonly #watcher: FSWatcher;
  readonly #directories = new Set<string>();

  private constructor(stack: Stack, proxy: LinkProxy, api: Api, sources: Sources) {
    this.api = api;
    this.stack = stack;
    this.proxy = proxy;
    this.sources = sources;
    // A database is born with its directory, so this sees clones that nobody is told of.
    this.#watcher = watch(join(sources.dataDir, 'base'), (_event, name) => {
      if (name && /^\d+$/.test(name)) this.#directories.add(name);
    });
  }

  static async open(): Promise<FaultStage> {
    const gatewayPort = await freePort();
    const proxy = await LinkProxy.start(`http://127.0.0.1:${gatewayPort}`);
    const devDir = mkdtempSync(join(tmpdir(), 'bg-faults-'));
    chmodSync(devDir, 0o755);
    const settings = readSettings({
      PATH: process.env.PATH,
      DEV_DIR: devDir,
      GATEWAY_PORT: String(gatewayPort),
      IDP_PORT: String(await freePort()),
      DIRECT_PORT: String(await freePort()),
      POOLED_PORT: String(await freePort()),
      GATEWAY_URL: proxy.url,
    });
    const stack = await startStack(settings, { report: () => {}, restarts: false });
    const { host_dir, data_dir, direct_port, pooled_port } = stack.state;
    const { state, sockets } = hostFolder(host_dir, settings);
    const [d1File] = globSync(join(devFolder(devDir).gatewayState, '**/d1/**/*.sqlite'));
    const now = new Date();
    const token = await accessToken(devFolder(devDir).identityProvider, {
      email: 'faults@example.com',
      role: 'owner',
      tenant: 'faults',
      scopes: scopeNames(['read', 'write']),
      issuedAt: now,
      expiresAt: new Date(now.getTime() + 3_600_000),
    });
    return new FaultStage(stack, proxy, new Api(stack.state.base_url, token), {
      d1File: d1File ?? '',
      postgres: { socketDir: sockets, port: direct_port },
      pooler: { socketDir: sockets, port: pooled_port },
      dataDir: data_dir,
      rulesDir: rulesFolder({ STATE_DIR: state }),
    });
  }

  async close(): Promise<void> {
    this.#watcher.close();
    await this.proxy.stop();
    await this.stack.stop();
  }

  /** Databases that PostgreSQL has begun to make since the stage was opened, finished or not. */
  get databasesBegun(): number {
    return this.#directories.size;
  }

  /**
   * Kills a part at a moment of a request's life, starts it again, and waits until everything is at rest.
   * Two clients send the request: one before the fault, one right after it.
   * @returns their answers
   */
  async strike<B>(victim: Victim, moment: Moment, request: () => Promise<Answer<B>>): Promise<Answer<B>[]> {
    const first = sentOnce(() => insist(request));
    await moment.reach({ proxy: this.proxy, begin: first, jobsEnded: () => this.jobsEnded() });
    await this.stack.parts[victim].kill();
    this.proxy.letGo();
    const answers = [first(), insist(request)];
    await this.stack.parts[victim].start();
    const t0 = performance.now();
    const answered = await Promise.all(answers);
    await this.atRest(); console.log(victim, moment.name, "up->rest", Math.round(performance.now() - t0));
    return answered;
  }

  /** Waits until records and host agree; what they do not agree on in time is the error. */
  async atRest(): Promise<void> {
    await eventually(async () => expect(violations(await takePicture(this.sources))).toEqual([]), AT_REST_WITHIN_S);
  }

  async jobsEnded(): Promise<void> {
    await eventually(async () => {
      const { jobs } = readRecords(this.sources.d1File);
      expect(jobs.filter(({ status }) => status === 'queued' || status === 'running')).toEqual([]);
    });
  }
}

function sentOnce<T>(action: () => T): () => T {
  let result: { value: T } | undefined;
  return () => {
    result ??= { value: action() };
    return result.value;
  };
}

/** Answers that say: nothing is decided, ask again. */
const UNDECIDED = ['IDEMPOTENCY_IN_FLIGHT', 'HOST_UNAVAILABLE', 'HOST_TIMEOUT', 'KEYS_UNAVAILABLE'];

/** Sends a request as a stubborn client does: again after a broken connection and after an undecided answer. */
export async function insist<B>(request: () => Promise<Answer<B>>): Promise<Answer<B>> {
  for (;;) {
    const answer = await request().catch(() => null);
    if (answer && !UNDECIDED.includes(String((answer.body as { error?: unknown }).error))) return answer;
    await sleep(ASK_AGAIN_EVERY_MS);
  }
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  return port;
}
