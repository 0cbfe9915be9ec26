import { setTimeout as sleep } from 'node:timers/promises';
import { reloadConsole } from '../access/sync-rules.ts';
import type { Host } from '../host.ts';
import { pollUntil } from '../poll-until.ts';
import { withLocks } from '../postgres/locks.ts';
import {
  inConsole,
  isRunning,
  openConsole,
  openConsoleIfRunning,
  showActiveServers,
  showDatabases,
  socketOf,
} from './console.ts';
import { readConnections } from './open-connections.ts';
import { canPause, pauseAlone } from './pause.ts';
import type { Redirect } from './redirect.ts';
import {
  type Instance,
  type Phase,
  readRestart,
  unwantStandby,
  wantStandby,
  writeRestart,
} from './restart-state.ts';

const START = { within: 30_000, every: 50 };
const DRAIN_EVERY_MS = 250;
const END = { within: 10_000, every: 20 };

/** The agent is about to end. The next one continues. */
class Stopped extends Error {}

/**
 * Restarts PgBouncer without cutting off clients (docs/decisions/0060): new clients get a standby while the old ones
 * leave, then the new PgBouncer, and the standby ends. Each step may be repeated, so that a killed agent's successor
 * continues at the phase that it finds.
 */
export class PoolerRestart {
  readonly #host: Host;
  readonly #redirect: Redirect;
  #signal = new AbortController().signal;

  constructor(host: Host, redirect: Redirect) {
    this.#host = host;
    this.#redirect = redirect;
  }

  /**
   * Performs the phases that are left.
   * @returns false if `signal` ended it; the restart is to be continued then
   * @throws Error why it was given up, or why it does not advance; it is to be continued unless the phase is `none`
   */
  async complete(signal: AbortSignal): Promise<boolean> {
    this.#signal = signal;
    const steps: Record<Exclude<Phase, 'none'>, () => Promise<void>> = {
      starting: () => this.#startStandby(),
      away: () => this.#restartMain(),
      back: () => this.#endStandby(),
    };
    try {
      for (;;) {
        const { phase } = readRestart(this.#host.settings);
        if (phase === 'none') return true;
        await steps[phase]();
      }
    } catch (error) {
      if (error instanceof Stopped) return false;
      throw error;
    }
  }

  async #startStandby(): Promise<void> {
    const { settings, rules } = this.#host;
    try {
      // From now on each PgBouncer opens half of the connections to PostgreSQL.
      await rules.sync();
      wantStandby(settings);
      await this.#untilRunning('standby');
      await this.#prepare('standby', 'main');
      await this.#redirect.toStandby();
    } catch (error) {
      if (error instanceof Stopped) throw error;
      await this.#giveUp(error instanceof Error ? error.message : String(error));
      throw error;
    }
    writeRestart(settings, 'away');
  }

  async #giveUp(reason: string): Promise<void> {
    const { settings, rules } = this.#host;
    // An agent that was killed had already redirected clients.
    if ((await this.#connections('standby')) > 0) return writeRestart(settings, 'back', reason);
    unwantStandby(settings);
    await this.#end('standby').catch(() => {});
    writeRestart(settings, 'none', reason);
    await rules.sync();
  }

  async #restartMain(): Promise<void> {
    const { settings } = this.#host;
    // After a restart of the machine the kernel has no redirection, and the standby has just started.
    if (await pollUntil(() => isRunning(settings, 'standby'), { ...START, signal: this.#signal })) {
      if (await isRunning(settings, 'main')) {
        await this.#prepare('standby', 'main');
        await this.#redirect.toStandby();
        await this.#drain('main');
        await this.#end('main');
      }
      await this.#untilRunning('main');
      await this.#prepare('main', 'standby');
    }
    this.#throwIfStopped();
    await this.#redirect.toMain();
    writeRestart(settings, 'back');
  }

  async #endStandby(): Promise<void> {
    const { settings, rules } = this.#host;
    await this.#redirect.toMain();
    await this.#drain('standby');
    unwantStandby(settings);
    await this.#end('standby');
    await this.#redirect.remove();
    writeRestart(settings, 'none', readRestart(settings).failure);
    await rules.sync();
  }

  /**
   * Makes an instance that may have started with older rules serve what the other one serves, and hold the clients
   * that it holds. The lock keeps the rules from changing meanwhile.
   */
  #prepare(instance: Instance, like: Instance): Promise<void> {
    const { settings, sessions } = this.#host;
    return withLocks(sessions, ['rules'], async () => {
      const served = await inConsole(settings, like, showDatabases);
      await inConsole(settings, instance, async (console) => {
        await reloadConsole(console, new Set(served.map(({ name }) => name)));
        for (const { name, paused } of served) if (paused && canPause(name)) await pauseAlone(console, name);
      });
    });
  }

  async #untilRunning(instance: Instance): Promise<void> {
    const { settings } = this.#host;
    const started = await pollUntil(() => isRunning(settings, instance), { ...START, signal: this.#signal });
    this.#throwIfStopped();
    if (!started) throw new Error(`${NAMES[instance]} does not start: read its log`);
  }

  /**
   * Waits until no connection to an instance is open, or opening in the kernel. At the end of POOLER_DRAIN_SECONDS the
   * clients that are in a transaction finish it, and the others are disconnected when the instance ends.
   */
  async #drain(instance: Instance): Promise<void> {
    const { settings, log } = this.#host;
    const deadline = Date.parse(readRestart(settings).since) + settings.POOLER_DRAIN_SECONDS * 1000;
    const poll = { within: Math.max(0, deadline - Date.now()), every: DRAIN_EVERY_MS, signal: this.#signal };
    // A busy machine delivers the first packet of a connection some time after it chose the instance.
    await sleep(DRAIN_EVERY_MS);
    if (await pollUntil(async () => (await this.#connections(instance)) === 0, poll)) return;
    this.#throwIfStopped();
    const console = await openConsoleIfRunning(settings, instance);
    if (!console) return;
    log('pooler.clients_ended', { instance, connections: await this.#connections(instance) });
    const pausing = await openConsole(settings, instance);
    try {
      // No answer comes until the last transaction has ended, which its watchdog bounds.
      pausing.query('PAUSE').catch(() => {});
      const isIdle = async () => (await showActiveServers(console)) === 0;
      await pollUntil(isIdle, { within: Infinity, every: DRAIN_EVERY_MS, signal: this.#signal });
      this.#throwIfStopped();
    } finally {
      pausing.end().catch(() => {});
      await console.end();
    }
  }

  #connections(instance: Instance): Promise<number> {
    return readConnections(socketOf(this.#host.settings, instance).port);
  }

  /** Ends an instance, with the clients that it has. */
  async #end(instance: Instance): Promise<void> {
    const { settings } = this.#host;
    if (!(await isRunning(settings, instance))) return;
    let hasEnded = false;
    const console = await openConsole(settings, instance, () => {
      hasEnded = true;
    });
    console.query('SHUTDOWN').catch(() => {});
    if (await pollUntil(async () => hasEnded, END)) return;
    throw new Error(`${NAMES[instance]} does not end: read its log`);
  }

  #throwIfStopped(): void {
    if (this.#signal.aborted) throw new Stopped();
  }
}

const NAMES: Record<Instance, string> = { main: 'PgBouncer', standby: 'the standby of PgBouncer' };
