import { type FSWatcher, readFileSync, watch } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { hostFolder } from '../../dev/stack/host-folder.ts';
import { sendSignal } from '../../dev/stack/processes.ts';
import { HOST_PARTS, PART_NAMES, type PartName } from '../../dev/stack/programs.ts';
import { Api } from '../support/api.ts';
import { eventually } from '../support/eventually.ts';
import { freePort } from '../support/free-port.ts';
import type { Sources } from '../support/snapshot.ts';
import { AgentClock } from '../support/stack/agent-clock.ts';
import { childrenOf, crash, partOf, placeOf, type Victim } from '../support/stack/crash.ts';
import { LinkProxy } from '../support/stack/link-proxy.ts';
import { SmallDisk } from '../support/stack/small-disk.ts';
import { type Stack, startStack, UNLIMITED } from '../support/stack/stack.ts';
import { sourcesOf } from '../support/stack/stack-sources.ts';
import type { RunHost } from './actor-run.ts';
import { type PlantName, plant } from './plants.ts';
import { Promotions } from './promotions.ts';
import { type Form, hostsIn } from './schedule.ts';

/** On a busy machine a single start may take half of this. */
const UP_WITHIN_S = 60;

interface StageOptions {
  /** A fault to build into the agent. */
  planted?: PlantName | undefined;
  form: Form;
}

/** A host of the stage: what the model knows of it, and where its state is read. */
interface StageHost extends RunHost {
  sources: Sources;
}

/**
 * A whole stack whose links go through a proxy. Only the simulator restarts its parts. The data of a single host is on a small
 * separate disk, where one can be mounted.
 */
export class Stage {
  readonly stack: Stack;
  readonly link: LinkProxy;
  readonly agentClock: AgentClock;
  readonly form: Form;
  readonly hosts: readonly StageHost[];
  /** The operator of the platform. */
  readonly operator: Api;
  /** Null if none can be mounted. */
  readonly disk: SmallDisk | null;
  #promotions: Promotions | null = null;
  readonly #directories = new Set<string>();
  readonly #watcher: FSWatcher;

  private constructor(
    stack: Stack,
    { link, agentClock, disk, form }: Pick<Stage, 'link' | 'agentClock' | 'disk' | 'form'>,
  ) {
    this.stack = stack;
    this.link = link;
    this.agentClock = agentClock;
    this.disk = disk;
    this.form = form;
    this.operator = new Api(stack.url, gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET ?? '');
    this.hosts = stack.hosts.map((host) => ({
      id: JSON.parse(readFileSync(join(host.stateDir, 'host.json'), 'utf8')).host_id as string,
      ports: host.ports,
      sources: sourcesOf(stack, host),
    }));
    this.#watcher = watch(join(stack.state.data_dir, 'base'), (_event, name) => {
      if (name && /^\d+$/.test(name)) this.#directories.add(name);
    });
  }

  static async open({ planted, form }: StageOptions): Promise<Stage> {
    const gatewayPort = String(await freePort());
    const link = await LinkProxy.start(`http://127.0.0.1:${gatewayPort}`);
    const agentClock = new AgentClock();
    // Projects that move leave closed copies, which would fill it.
    const disk = hostsIn(form) > 1 ? null : SmallDisk.mount();
    const env = {
      ...agentClock.env,
      GATEWAY_PORT: gatewayPort,
      GATEWAY_URL: link.url,
      HOSTS: String(form.hosts),
      STANDBY: form.standby ? '1' : '0',
      MEASURE_INTERVAL_SECONDS: '2',
      ...UNLIMITED,
      // A schedule plans as many other branches as a project may have.
      LEASED_BRANCH_LIMIT: '50',
      // With the default, the small disk would always be full.
      ...(disk && { PGDATA_DIR: disk.folder, MIN_FREE_DISK_MB: '16' }),
    };
    try {
      const stack = await startStack({ restarts: false, env });
      const stage = new Stage(stack, { link, agentClock, disk, form });
      if (form.standby) stage.#promotions = await Promotions.open(stack, stage.operator, stage.hosts);
      if (planted) await stage.#plant(planted);
      return stage;
    } catch (error) {
      await link.stop();
      agentClock.remove();
      disk?.remove();
      throw error;
    }
  }

  async close(): Promise<void> {
    this.#watcher.close();
    for (const [host] of this.hosts.entries()) for (const part of PART_NAMES) this.thaw(part, host);
    this.disk?.empty();
    await this.#promotions?.stop();
    try {
      await this.stack.stop();
    } finally {
      await this.link.stop();
      this.agentClock.remove();
      this.disk?.remove();
    }
  }

  /**
   * Number of databases that the first PostgreSQL has begun to create since the stage was opened, counted by
   * directories. Spares, which nobody has asked for, are counted by the log of the agent.
   */
  get databasesBegun(): number {
    return this.#directories.size - this.#countEvents('spare.begun') - this.#countEvents('standing.begun');
  }

  /** Number of branches that took a spare since the stage was opened. */
  get sparesTaken(): number {
    return this.#countEvents('spare.taken');
  }

  /** Number of snapshots of unchanged branches, for the next branches of them. */
  get standingSnapshots(): number {
    return this.#countEvents('standing.begun');
  }

  #countEvents(event: string): number {
    const log = readFileSync(join(devFolder(this.stack.devDir).logs, 'agent.log'), 'utf8');
    return log.split(`"event":"${event}"`).length - 1;
  }

  /** Null for a stage without a standby. */
  get promotions(): Promotions | null {
    return this.#promotions;
  }

  /** Those of its hosts that serve projects. */
  async serving(): Promise<readonly StageHost[]> {
    const ids = await this.#promotions?.serving();
    return ids ? this.hosts.filter(({ id }) => ids.includes(id)) : this.hosts;
  }

  /** @param host its place in `hosts` */
  kill(victim: Victim, host = 0): Promise<void> {
    return crash(this.stack, victim, host);
  }

  /** Sends SIGSTOP. */
  freeze(victim: Victim, host: number): void {
    this.#signal(victim, 'SIGSTOP', host);
  }

  /** Sends SIGCONT. */
  thaw(victim: Victim, host: number): void {
    this.#signal(victim, 'SIGCONT', host);
  }

  /** Starts every part that has ended. */
  async startAll(): Promise<void> {
    const [first, ...others] = this.hosts.keys();
    await Promise.all([
      ...PART_NAMES.map((part) => this.startPart(part, first)),
      ...others.flatMap((host) => HOST_PARTS.map((part) => this.startPart(part, host))),
    ]);
  }

  /**
   * Starts the part if it has ended. Retries, because PostgreSQL refuses while orphaned processes use its
   * memory.
   */
  startPart(part: PartName, host = 0): Promise<void> {
    return eventually(() => placeOf(this.stack, part, host).start(), UP_WITHIN_S);
  }

  /**
   * Signals the part's process group; for PostgreSQL only the postmaster, unless the victim is the whole
   * server.
   */
  #signal(victim: Victim, signal: NodeJS.Signals, host: number): void {
    const { pid } = placeOf(this.stack, partOf(victim), host);
    if (pid) sendSignal(-pid, signal);
    for (const child of childrenOf(this.stack, victim, host)) sendSignal(child, signal);
  }

  async #plant(name: PlantName): Promise<void> {
    for (const host of this.stack.hosts) {
      const bundle = join(hostFolder(dirname(host.stateDir), {}).programs, 'branchgate-agent.mjs');
      await writeFile(bundle, plant(name, readFileSync(bundle, 'utf8')));
      await host.kill('agent');
      await host.start('agent');
    }
    await this.stack.untilReady();
  }
}
