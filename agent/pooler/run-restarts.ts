import type { Host } from '../host.ts';
import { repeat } from '../repeat.ts';
import { type Log, TroubleLog } from '../trouble-log.ts';
import { readMemory } from './console.ts';
import { packetRedirect, type Redirect } from './redirect.ts';
import { PoolerRestart } from './restart.ts';
import {
  forgetAsking,
  isAskedFor,
  type RestartState,
  readRestart,
  repairRestart,
  writeRestart,
} from './restart-state.ts';

const POLL_EVERY_MS = 1_000;
/** Each look opens a console session, which PgBouncer logs. */
const LOOK_EVERY_MS = 60_000;
/** What the present logins need does not become less by a restart. */
const REST_MS = 24 * 3_600_000;

/** Whether PgBouncer's caches are a reason for a restart. @param now in milliseconds since 1970 */
export const isDue = (bytes: number, limitMb: number, { since }: RestartState, now: number): boolean =>
  limitMb > 0 && bytes >= limitMb * 2 ** 20 && now - Date.parse(since) >= REST_MS;

/**
 * Restarts PgBouncer when its caches have grown to POOLER_MEMORY_MB, or on request, and completes a restart that a
 * killed agent has left.
 */
export class PoolerRestarts {
  readonly #host: Host;
  readonly #restart: PoolerRestart;
  readonly #troubles: TroubleLog;
  readonly #log: Log;
  #lookAt = 0;

  constructor(host: Host, redirect: Redirect = packetRedirect(host.settings)) {
    this.#host = host;
    this.#log = host.log;
    this.#restart = new PoolerRestart(host, redirect);
    this.#troubles = new TroubleLog(host.log);
  }

  /** Polls until `signal`. Never throws. */
  async run(signal: AbortSignal): Promise<void> {
    if (this.#host.settings.POOLER_STANDBY_PORT === 0) {
      if (readRestart(this.#host.settings).phase !== 'none')
        this.#log('pooler.restart_failed', { reason: 'POOLER_STANDBY_PORT was removed during a restart' });
      return;
    }
    const poll = () =>
      this.poll(signal).then(
        () => this.#troubles.clearAll(),
        (error) => this.#troubles.report('pooler.restart_failed', 'restart', error),
      );
    await repeat(poll, POLL_EVERY_MS, signal);
  }

  /** Begins a restart if there is a reason, and performs what is left of one. */
  async poll(signal: AbortSignal): Promise<void> {
    const { settings } = this.#host;
    if (repairRestart(settings)) this.#log('pooler.restart_state_damaged', readRestart(settings));
    if (readRestart(settings).phase === 'none') {
      const reason = isAskedFor(settings) ? 'asked' : (await this.#isTooLarge()) ? 'memory' : null;
      if (!reason) return;
      writeRestart(settings, 'starting');
      this.#log('pooler.restart_begun', { reason });
    }
    forgetAsking(settings);
    if (await this.#restart.complete(signal))
      this.#log('pooler.restart_ended', { memory_bytes: await readMemory(settings) });
  }

  async #isTooLarge(): Promise<boolean> {
    const { settings } = this.#host;
    if (performance.now() < this.#lookAt) return false;
    this.#lookAt = performance.now() + LOOK_EVERY_MS;
    return isDue(await readMemory(settings), settings.POOLER_MEMORY_MB, readRestart(settings), Date.now());
  }
}
