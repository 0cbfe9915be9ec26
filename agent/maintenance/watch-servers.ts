import { setTimeout as sleep } from 'node:timers/promises';
import type { Host } from '../host.ts';
import { type OwnSession, openPlatformSession } from '../postgres/connect.ts';
import { RECOVERY_STEPS, type RecoveryStep, recover, resumeAbandoned } from './recover.ts';

type Log = (event: string, fields?: Record<string, unknown>) => void;

const LOOK_EVERY_MS = 1_000;

/**
 * Keeps the host in order: recovers at the first look, and again whenever PostgreSQL was away. A session that
 * does nothing tells: it is lost when the server stops, is killed or restarts after a crash.
 */
export class ServerWatch {
  readonly #host: Host;
  readonly #log: Log;
  #session: OwnSession | null = null;
  #due: readonly RecoveryStep[] = RECOVERY_STEPS;
  /** What the log was told last of each step that fails. */
  readonly #failures = new Map<string, string>();

  constructor(host: Host, log: Log) {
    this.#host = host;
    this.#log = log;
  }

  /** Looks until `signal`. */
  async keepLooking(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      await sleep(LOOK_EVERY_MS, undefined, { signal }).catch(() => {});
      await this.look();
    }
    await this.#session?.end();
  }

  /** Tries each step of recovery that is due; clients that nobody holds any more are let go at every look. Never throws. */
  async look(): Promise<void> {
    if (!this.#session) {
      this.#due = RECOVERY_STEPS;
      this.#session = await openPlatformSession(this.#host.settings, () => {
        this.#session = null;
      }).catch(() => null);
    }
    const failed = await recover(this.#host, this.#due, (step, error) => this.#note(step.name, error));
    this.#due = [...new Set([resumeAbandoned, ...failed])];
    if (failed.length > 0 || this.#failures.size === 0) return;
    this.#failures.clear();
    this.#log('recovery.done');
  }

  #note(step: string, error: unknown) {
    const reason = error instanceof Error ? error.message : String(error);
    if (this.#failures.get(step) !== reason) this.#log('recovery.failed', { step, reason });
    this.#failures.set(step, reason);
  }
}
