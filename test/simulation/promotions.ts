import { setTimeout as sleep } from 'node:timers/promises';
import { HOST_PARTS } from '../../dev/stack/programs.ts';
import { Api } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import {
  type Commit,
  memberOf,
  promotionsOf,
  WRITTEN,
  Writers,
  writerFaults,
} from '../support/stack/partitions.ts';
import type { Stack } from '../support/stack/stack.ts';
import type { RunHost } from './actor-run.ts';

/** A host and its standby, which take each other's place; and two projects that are written to all the time. */

interface HostBody {
  id: string;
  linked: boolean;
  members: { host_id: string; role: string; lag_bytes: number | null; sync: string | null }[];
}

/** Users pause for longer than the reported second may lie before a loss. */
const LULL_MS = 6_000;
const WRITE_EVERY_MS = 20;
const WELL_WITHIN_S = 120;
const PROJECTS = ['sync', 'async'] as const;

interface Written {
  durability: (typeof PROJECTS)[number];
  writers: Writers;
  /** Commits that went with a primary, as those of the last moment may. */
  gone: Set<number>;
  /** A URL of the database at the present primary. */
  url: () => Promise<string>;
}

/** Users that pause between their operations. */
export class Users {
  #working = 0;
  #resumed: Promise<void> = Promise.resolve();

  /** Waits while users pause. */
  async work<T>(operations: () => Promise<T>): Promise<T> {
    await this.#resumed;
    this.#working += 1;
    try {
      return await operations();
    } finally {
      this.#working -= 1;
    }
  }

  /** Resolves when nobody works. @returns lets them work again */
  async pause(): Promise<() => void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#resumed = promise;
    try {
      await eventually(async () => require(this.#working === 0, 'users are at work'));
    } catch (error) {
      resolve();
      throw error;
    }
    return resolve;
  }
}

function require(isSo: boolean, what: string): void {
  if (!isSo) throw new Error(what);
}

export class Promotions {
  readonly #stack: Stack;
  readonly #operator: Api;
  readonly #hosts: readonly RunHost[];
  readonly #written: Written[] = [];
  #problems: string[] = [];

  private constructor(stack: Stack, operator: Api, hosts: readonly RunHost[]) {
    this.#stack = stack;
    this.#operator = operator;
    this.#hosts = hosts;
  }

  static async open(stack: Stack, operator: Api, hosts: readonly RunHost[]): Promise<Promotions> {
    const opened = new Promotions(stack, operator, hosts);
    await opened.#untilWell();
    const api = new Api(stack.url, await stack.token({ tenant: 'writers' }));
    const ports = Object.fromEntries(hosts.map(({ id, ports }) => [id, ports.direct]));
    for (const durability of PROJECTS) {
      const { id } = await api.project(durability);
      await api.allow(id);
      await api.patch(`/api/v1/projects/${id}`, { durability });
      const url = async () => (await api.credentials(id, 'main')).direct_url;
      await query(await url(), WRITTEN);
      const writers = new Writers(await url(), ports, WRITE_EVERY_MS);
      opened.#written.push({ durability, writers, gone: new Set(), url });
    }
    return opened;
  }

  /** What was wrong since the last call. */
  problems(): string[] {
    const found = this.#problems;
    this.#problems = [];
    const promotions = promotionsOf(this.#stack);
    for (const { durability, writers } of this.#written)
      for (const fault of writerFaults(writers.commits, promotions)) found.push(`${durability}: ${fault}`);
    return found;
  }

  /** The ids of the hosts that serve. */
  async serving(): Promise<string[]> {
    const { primary } = await this.#roles();
    return [primary];
  }

  /** A planned switch, which loses nothing. One that is refused changes nothing. */
  async switch(): Promise<void> {
    const { standby } = await this.#roles();
    const path = `/platform/v1/hosts/${standby}/promote`;
    const response = await this.#operator.post(path, {}).catch(() => null);
    if (response?.status !== 200) return;
    for (const written of this.#written) await this.#checkWritten(written, Number.POSITIVE_INFINITY);
  }

  /** The primary is killed while nobody but the writers is at work, and its standby is promoted. */
  async lose(users: Users): Promise<void> {
    const resume = await users.pause();
    try {
      await this.#untilWell();
      const began = Date.now();
      await sleep(LULL_MS);
      const { primary, standby } = await this.#roles();
      await this.#killAll(primary);
      const killed = Date.now();
      const survivedUntil = await eventually(async () => {
        const path = `/platform/v1/hosts/${standby}/promote`;
        const { status, body } = await this.#operator.post<{ survived_until: string }>(path, {
          lost: primary,
        });
        require(status === 200, `the standby is not promoted: ${status}`);
        return Date.parse(body.survived_until);
      });
      if (!(survivedUntil >= began))
        this.#problems.push(
          `promotion: a second was reported that is ${began - survivedUntil} ms before users paused`,
        );
      if (survivedUntil > killed)
        this.#problems.push('promotion: the second that was reported is after the loss');
      for (const written of this.#written) await this.#checkWritten(written, survivedUntil);
    } finally {
      resume();
    }
  }

  /** What was confirmed before the reported second is there, and with `sync` everything. */
  async #checkWritten({ durability, writers, gone, url }: Written, survivedUntil: number): Promise<void> {
    const confirmed = [...writers.commits];
    const rows = await eventually(async () => query<{ id: string }>(await url(), 'select id from written'));
    const found = new Set(rows.map(({ id }) => Number(id)));
    const isPromised = ({ confirmedAt }: Commit) =>
      durability === 'sync' || performance.timeOrigin + confirmedAt < survivedUntil;
    const hasToBeThere = confirmed.filter((commit) => isPromised(commit) && !gone.has(commit.id));
    const lost = hasToBeThere.filter(({ id }) => !found.has(id));
    for (const commit of confirmed) if (!isPromised(commit) && !found.has(commit.id)) gone.add(commit.id);
    if (lost.length > 0)
      this.#problems.push(
        `promotion: ${lost.length} of ${hasToBeThere.length} commits of the ${durability} project are lost`,
      );
  }

  /** A former primary becomes the standby by another copy. */
  async rejoin(): Promise<void> {
    const { primary, fenced } = await this.#roles();
    if (fenced !== null) {
      const host = this.#host(fenced);
      // One that was lost has not heard of it, and opens no port before it has.
      const starts = HOST_PARTS.map((part) => host.start(part).catch(() => {}));
      await eventually(async () => {
        require(memberOf(host).role === 'fenced', 'the former primary has not heard that it is fenced');
      }, WELL_WITHIN_S);
      await this.#killAll(fenced);
      await Promise.all(starts);
      // The new primary has to be reached, which may have just begun to serve.
      await eventually(() => host.agentTool('copy-primary'), WELL_WITHIN_S);
      await Promise.all(HOST_PARTS.map((part) => eventually(() => host.start(part), WELL_WITHIN_S)));
    }
    require(primary !== '', 'no host is the primary');
    await this.#untilWell();
  }

  async stop(): Promise<void> {
    await Promise.all(this.#written.map(({ writers }) => writers.stop()));
  }

  #host(id: string) {
    const host = this.#stack.hosts[this.#hosts.findIndex((one) => one.id === id)];
    if (!host) throw new Error('the stage has no such host');
    return host;
  }

  async #killAll(id: string): Promise<void> {
    for (const part of HOST_PARTS) await this.#host(id).kill(part);
  }

  async #bodies(): Promise<HostBody[]> {
    const { body } = await this.#operator.get<{ hosts: HostBody[] }>('/platform/v1/hosts');
    return body.hosts;
  }

  #roles = () =>
    eventually(async () => {
      const members = (await this.#bodies())[0]?.members ?? [];
      const of = (role: string) => members.find((member) => member.role === role)?.host_id ?? null;
      const primary = of('primary');
      const standby = of('standby');
      const fenced = of('fenced');
      if (primary === null) throw new Error('no host is the primary');
      return { primary, standby: standby ?? fenced ?? '', fenced };
    });

  /** Waits until the standby has everything, and confirms the commits that wait for it. */
  #untilWell = () =>
    eventually(async () => {
      const bodies = await this.#bodies();
      require(bodies.length === 2 && bodies.every(({ linked }) => linked), 'a host is not linked');
      const standby = bodies[0]?.members.find(({ role }) => role === 'standby');
      require(standby?.lag_bytes === 0, 'the standby lacks something');
      require(this.#written.length === 0 || standby?.sync === 'confirming', 'the standby confirms nothing');
    }, WELL_WITHIN_S);
}
