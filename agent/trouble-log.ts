import type { Log } from './link/dispatch.ts';

const LOG_AGAIN_AFTER_MS = 60_000;

/** Logs a recurring trouble when its reason changes, and otherwise once per interval. */
export class TroubleLog {
  readonly #log: Log;
  readonly #every: number;
  readonly #now: () => number;
  /** The last line that was logged, by event. */
  readonly #logged = new Map<string, { reason: string; at: number }>();

  /**
   * @param options.every milliseconds between two lines with the same reason
   * @param options.now milliseconds of a monotonic clock
   */
  constructor(log: Log, options: { every?: number; now?: () => number } = {}) {
    this.#log = log;
    this.#every = options.every ?? LOG_AGAIN_AFTER_MS;
    this.#now = options.now ?? (() => performance.now());
  }

  report(event: string, reason: string, fields: Record<string, unknown> = {}): void {
    const last = this.#logged.get(event);
    const now = this.#now();
    if (last?.reason === reason && now - last.at < this.#every) return;
    this.#logged.set(event, { reason, at: now });
    this.#log(event, { ...fields, reason });
  }

  /** Forgets the trouble of one event, or of all. @returns whether there was any */
  clear(event?: string): boolean {
    if (event !== undefined) return this.#logged.delete(event);
    const hadTrouble = this.#logged.size > 0;
    this.#logged.clear();
    return hadTrouble;
  }
}
