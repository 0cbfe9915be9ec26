import { setTimeout as sleep } from 'node:timers/promises';
import type { Host } from '../host.ts';
import { type OwnSession, openPlatformSession } from '../postgres/connect.ts';
import { type Log, TroubleLog } from '../trouble-log.ts';
import {
  RECOVERY_STEPS,
  type RecoveryStep,
  recover,
  resumeAbandoned,
  truncateNotifications,
} from './recover.ts';

const POLL_EVERY_MS = 1_000;
const AT_EVERY_POLL = [resumeAbandoned, truncateNotifications];

/**
 * Recovers the host at the first poll, and again whenever PostgreSQL was away. An idle session detects that: it is
 * lost when the server stops, is killed or restarts after a crash.
 */
export class ServerWatch {
  readonly #host: Host;
  readonly #log: Log;
  readonly #troubles: TroubleLog;
  #session: OwnSession | null = null;
  #due: readonly RecoveryStep[] = RECOVERY_STEPS;

  constructor(host: Host, log: Log) {
    this.#host = host;
    this.#log = log;
    this.#troubles = new TroubleLog(log);
  }

  /** Polls until `signal`. Never throws. */
  async runLoop(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      await sleep(POLL_EVERY_MS, undefined, { signal }).catch(() => {});
      await this.poll();
    }
    await this.#session?.end();
  }

  /** Tries each recovery step that is due. Two of them run at every poll. Never throws. */
  async poll(): Promise<void> {
    if (!this.#session) {
      this.#due = RECOVERY_STEPS;
      this.#session = await openPlatformSession(this.#host.settings, () => {
        this.#session = null;
      }).catch(() => null);
    }
    const failed = await recover(this.#host, this.#due, ({ name: step }, error) =>
      this.#troubles.report('recovery.failed', step, error, { step }),
    );
    this.#due = [...new Set([...AT_EVERY_POLL, ...failed])];
    if (failed.length === 0 && this.#troubles.clearAll()) this.#log('recovery.done');
  }
}
