import { readFileSync, watch } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { hostFolder } from '../../dev/stack/host-folder.ts';
import { sendSignal } from '../../dev/stack/processes.ts';
import { PART_NAMES, type PartName } from '../../dev/stack/programs.ts';
import { eventually } from '../support/eventually.ts';
import { freePort } from '../support/free-port.ts';
import type { Sources } from '../support/snapshot.ts';
import { AgentClock } from '../support/stack/agent-clock.ts';
import { childrenOf, crash, partOf, type Victim } from '../support/stack/crash.ts';
import { LinkProxy } from '../support/stack/link-proxy.ts';
import { SmallDisk } from '../support/stack/small-disk.ts';
import { type Stack, startStack, UNLIMITED } from '../support/stack/stack.ts';
import { sourcesOf } from '../support/stack/stack-sources.ts';
import { type PlantName, plant } from './plants.ts';

/** On a busy machine a single start may take half of this. */
const UP_WITHIN_S = 60;

interface StageOptions {
  /** A fault to build into the agent. */
  planted?: PlantName | undefined;
}

/**
 * A whole stack whose link goes through a proxy and whose data is on a small separate disk, where one can be
 * mounted. Only the simulator restarts its parts.
 */
export class Stage {
  readonly stack: Stack;
  readonly link: LinkProxy;
  readonly agentClock: AgentClock;
  readonly sources: Sources;
  /** Null if none can be mounted. */
  readonly disk: SmallDisk | null;
  readonly #directories = new Set<string>();
  readonly #watcher;

  private constructor(stack: Stack, { link, agentClock, disk }: Pick<Stage, 'link' | 'agentClock' | 'disk'>) {
    this.stack = stack;
    this.link = link;
    this.agentClock = agentClock;
    this.disk = disk;
    this.sources = sourcesOf(stack);
    this.#watcher = watch(join(this.sources.dataDir, 'base'), (_event, name) => {
      if (name && /^\d+$/.test(name)) this.#directories.add(name);
    });
  }

  static async open({ planted }: StageOptions = {}): Promise<Stage> {
    const gatewayPort = String(await freePort());
    const link = await LinkProxy.start(`http://127.0.0.1:${gatewayPort}`);
    const agentClock = new AgentClock();
    const disk = SmallDisk.mount();
    const env = {
      ...agentClock.env,
      GATEWAY_PORT: gatewayPort,
      GATEWAY_URL: link.url,
      MEASURE_INTERVAL_SECONDS: '2',
      ...UNLIMITED,
      // With the default, the small disk would always be full.
      ...(disk && { PGDATA_DIR: disk.folder, MIN_FREE_DISK_MB: '16' }),
    };
    try {
      const stack = await startStack({ restarts: false, env });
      const stage = new Stage(stack, { link, agentClock, disk });
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
    for (const part of PART_NAMES) this.thaw(part);
    this.disk?.empty();
    try {
      await this.stack.stop();
    } finally {
      await this.link.stop();
      this.agentClock.remove();
      this.disk?.remove();
    }
  }

  /**
   * Number of databases that PostgreSQL has begun to create since the stage was opened, counted by
   * directories. Spares, which nobody has asked for, are counted by the log of the agent.
   */
  get databasesBegun(): number {
    return this.#directories.size - this.#countEvents('spare.begun');
  }

  /** Number of branches that took a spare since the stage was opened. */
  get sparesTaken(): number {
    return this.#countEvents('spare.taken');
  }

  #countEvents(event: string): number {
    const log = readFileSync(join(devFolder(this.stack.devDir).logs, 'agent.log'), 'utf8');
    return log.split(`"event":"${event}"`).length - 1;
  }

  kill(victim: Victim): Promise<void> {
    return crash(this.stack, victim);
  }

  /** Sends SIGSTOP. */
  freeze(victim: Victim): void {
    this.#signal(victim, 'SIGSTOP');
  }

  /** Sends SIGCONT. */
  thaw(victim: Victim): void {
    this.#signal(victim, 'SIGCONT');
  }

  /** Starts every part that has ended. */
  async startAll(): Promise<void> {
    await Promise.all(PART_NAMES.map((part) => this.startPart(part)));
  }

  /**
   * Starts the part if it has ended. Retries, because PostgreSQL refuses while orphaned processes use its
   * memory.
   */
  startPart(part: PartName): Promise<void> {
    return eventually(() => this.stack.start(part), UP_WITHIN_S);
  }

  /**
   * Signals the part's process group; for PostgreSQL only the postmaster, unless the victim is the whole
   * server.
   */
  #signal(victim: Victim, signal: NodeJS.Signals): void {
    const pid = this.stack.state.pids[partOf(victim)];
    if (pid) sendSignal(-pid, signal);
    for (const child of childrenOf(this.stack, victim)) sendSignal(child, signal);
  }

  async #plant(name: PlantName): Promise<void> {
    const bundle = join(hostFolder(this.stack.state.host_dir, {}).programs, 'branchgate-agent.mjs');
    await writeFile(bundle, plant(name, readFileSync(bundle, 'utf8')));
    await this.stack.kill('agent');
    await this.stack.start('agent');
    await this.stack.untilReady();
  }
}
