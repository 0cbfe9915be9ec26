import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Pool } from '../postgres/connect.ts';
import { withHostLock, withLocks } from '../postgres/locks.ts';
import type { Log } from '../process/log.ts';
import { pollUntil, runLoop } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import {
  inAdminConsole,
  isRunning,
  openAdminConsole,
  openConsoleIfRunning,
  readMemory,
  reloadAdminConsole,
  showActiveServers,
  showDatabases,
  socketOf,
} from './admin-console.ts';
import { canPause, pauseAlone } from './pause.ts';
import { packetRedirect, type Redirect } from './restart-redirect.ts';
import {
  forgetAsking,
  type Instance,
  isAskedFor,
  type Phase,
  readRestart,
  repairRestart,
  unwantStandby,
  wantStandby,
  writeRestart,
} from './restart-state.ts';

interface RestartedHost {
  settings: AgentSettings;
  sessions: Pool;
  rules: { sync: () => Promise<void> };
  log: Log;
}

/** Tables of proc_net(5). A machine without IPv6 lacks the second. */
const TABLES = ['/proc/net/tcp', '/proc/net/tcp6'];

/** `<number>: <local address>:<port> <remote address>:<port> <state>`, in hexadecimal digits. */
const LINE = /^ *\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} ([0-9A-F]{2}) /gm;

/** ESTABLISHED and SYN_RECV. Of these, PgBouncer knows only those that it has accepted. */
const OPEN = new Set(['01', '03']);

/** Connections to this port that are open or opening. @param tables texts of the kernel's tables */
export const countConnections = (tables: readonly string[], port: number): number =>
  tables
    .flatMap((table) => [...table.matchAll(LINE)])
    .filter(([, local = '', state = '']) => Number.parseInt(local, 16) === port && OPEN.has(state)).length;

export const readConnections = async (port: number): Promise<number> =>
  countConnections(await Promise.all(TABLES.map((path) => readFile(path, 'utf8').catch(() => ''))), port);

const START = { within: 30_000, every: 50 };
const DRAIN_EVERY_MS = 250;
const END = { within: 10_000, every: 20 };

/** The agent is about to end. The next one continues. */
class Stopped extends Error {}

/**
 * Restarts PgBouncer without cutting off clients (docs/decisions/pooler.md): new clients get a standby while
 * the old ones leave, then the new PgBouncer, and the standby ends. Each step may be repeated, so that a
 * killed agent's successor continues at the phase that it finds.
 */
export class PoolerRestart {
  readonly #host: RestartedHost;
  readonly #redirect: Redirect;
  #signal = new AbortController().signal;

  constructor(host: RestartedHost, redirect: Redirect) {
    this.#host = host;
    this.#redirect = redirect;
  }

  /**
   * Performs the phases that are left.
   * @returns false if `signal` ended it; the restart is to be continued then
   * @throws Error why it was given up, or why it does not advance; it is to be continued unless the phase is
   *   `none`
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
   * Makes an instance that may have started with older rules serve what the other one serves, and hold the
   * clients that it holds. The lock keeps the rules from changing meanwhile.
   */
  #prepare(instance: Instance, like: Instance): Promise<void> {
    const { settings, sessions } = this.#host;
    const prepare = async () => {
      const served = await inAdminConsole(settings, like, showDatabases);
      await inAdminConsole(settings, instance, async (console) => {
        await reloadAdminConsole(console, new Set(served.map(({ name }) => name)), null);
        for (const { name, paused } of served) if (paused && canPause(name)) await pauseAlone(console, name);
      });
    };
    return withLocks(sessions, [], (session) => withHostLock(session, 'rules', prepare));
  }

  async #untilRunning(instance: Instance): Promise<void> {
    const { settings } = this.#host;
    const started = await pollUntil(() => isRunning(settings, instance), { ...START, signal: this.#signal });
    this.#throwIfStopped();
    if (!started) throw new Error(`${NAMES[instance]} does not start: read its log`);
  }

  /**
   * Waits until no connection to an instance is open, or opening in the kernel. At the end of
   * POOLER_DRAIN_SECONDS the clients that are in a transaction finish it, and the others are disconnected
   * when the instance ends.
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
    const pausing = await openAdminConsole(settings, instance);
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
    const console = await openAdminConsole(settings, instance, () => {
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

const POLL_EVERY_MS = 1_000;

/** Restarts PgBouncer on request, and completes a restart that a killed agent has left. */
export class PoolerRestarts {
  readonly #host: RestartedHost;
  readonly #restart: PoolerRestart;
  readonly #log: Log;

  constructor(host: RestartedHost, redirect: Redirect = packetRedirect(host.settings)) {
    this.#host = host;
    this.#log = host.log;
    this.#restart = new PoolerRestart(host, redirect);
  }

  async run(signal: AbortSignal): Promise<void> {
    if (this.#host.settings.POOLER_STANDBY_PORT === 0) {
      if (readRestart(this.#host.settings).phase !== 'none')
        this.#log('pooler.restart_failed', { reason: 'POOLER_STANDBY_PORT was removed during a restart' });
      return;
    }
    await runLoop(() => this.poll(signal), {
      every: POLL_EVERY_MS,
      signal,
      log: this.#log,
      failed: 'pooler.restart_failed',
    });
  }

  /** Begins a restart that was asked for, and performs what is left of one. */
  async poll(signal: AbortSignal): Promise<void> {
    const { settings } = this.#host;
    if (repairRestart(settings)) this.#log('pooler.restart_state_damaged', readRestart(settings));
    if (readRestart(settings).phase === 'none') {
      if (!isAskedFor(settings)) return;
      writeRestart(settings, 'starting');
      this.#log('pooler.restart_begun');
    }
    forgetAsking(settings);
    if (await this.#restart.complete(signal))
      this.#log('pooler.restart_ended', { memory_bytes: await readMemory(settings) });
  }
}
