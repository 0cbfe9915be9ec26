/** Writes one event of the agent's log. */
export type Log = (event: string, fields?: Record<string, unknown>) => void;

/** The same trouble is logged again after this time. Milliseconds. */
const REPEAT_AFTER_MS = 60_000;

/**
 * Logs troubles that recur, such as a server that stays away: each reason when it first appears, and then
 * once a minute.
 */
export class TroubleLog {
  readonly #log: Log;
  readonly #now: () => number;
  /** By subject: when each reason was logged last. */
  readonly #reasons = new Map<string, Map<string, number>>();

  /** @param now a steady clock in milliseconds */
  constructor(log: Log, now: () => number = () => performance.now()) {
    this.#log = log;
    this.#now = now;
  }

  /**
   * Logs `event` with the reason of `trouble`, unless the subject had the same reason within the last minute.
   * @param subject what the trouble is with, to tell it from other troubles of this log
   * @param trouble an error, or the reason as text
   * @param fields logged next to the reason
   */
  report(event: string, subject: string, trouble: unknown, fields: Record<string, unknown> = {}): void {
    const reason = trouble instanceof Error ? trouble.message : String(trouble);
    const now = this.#now();
    const reasons = this.#reasons.get(subject) ?? new Map<string, number>();
    this.#reasons.set(subject, reasons);
    // Reasons can carry process ids and times, so old ones are forgotten.
    for (const [known, loggedAt] of reasons) if (now - loggedAt >= REPEAT_AFTER_MS) reasons.delete(known);
    if (reasons.has(reason)) return;
    reasons.set(reason, now);
    this.#log(event, { ...fields, reason });
  }

  /** Ends the trouble with one subject. @returns whether there was any */
  clear(subject: string): boolean {
    return this.#reasons.delete(subject);
  }

  /** Ends every trouble. @returns whether there was any */
  clearAll(): boolean {
    const hadTrouble = this.#reasons.size > 0;
    this.#reasons.clear();
    return hadTrouble;
  }
}
