import { jobError, retryDelay } from '../jobs/saga.ts';
import { logEvent } from '../log.ts';

/** The single alarm of a Durable Object, shared by several users: the earliest timestamp is set. */
export class EarliestAlarm {
  readonly #storage: Pick<DurableObjectStorage, 'getAlarm' | 'setAlarm'>;
  #at = Number.POSITIVE_INFINITY;
  #guard = 0;

  constructor(storage: Pick<DurableObjectStorage, 'getAlarm' | 'setAlarm'>) {
    this.#storage = storage;
  }

  /** To be called first: a new instance must not replace an earlier alarm by a later one. */
  async recall(): Promise<void> {
    this.#at = (await this.#storage.getAlarm()) ?? Number.POSITIVE_INFINITY;
  }

  /** @param timestamp Unix milliseconds. An alarm that is due but has not fired yet stays set, too. */
  wakeAt(timestamp: number): void {
    if (timestamp >= this.#at) return;
    this.#at = timestamp;
    void this.#storage.setAlarm(timestamp);
  }

  /**
   * As `wakeAt`, and also if another user's alarm fires before: that one finds nothing of a write that comes
   * after it.
   */
  guard(timestamp: number): void {
    this.#guard = Math.max(this.#guard, timestamp);
    this.wakeAt(timestamp);
  }

  /** The alarm has fired. */
  fired(): void {
    this.#at = Number.POSITIVE_INFINITY;
    if (this.#guard > Date.now()) this.wakeAt(this.#guard);
  }

  /** The alarm was deleted with the storage. */
  deleted(): void {
    this.#at = Number.POSITIVE_INFINITY;
    this.#guard = 0;
  }
}

/** Added to the failures in a row, so that the first retry comes after two seconds. */
const ATTEMPTS_AHEAD = 3;

/** Work of a coordinator that its alarm repeats until it succeeds, by the log event of its failure. */
type Work = 'access.not_applied' | 'events.not_published' | 'project.not_looked_after';

/** Backs off so that an object whose host is unavailable can sleep; the return of the host wakes it. */
export class Retries {
  readonly #alarm: EarliestAlarm;
  /** Number of failures in a row. */
  readonly #failures = new Map<Work, number>();

  constructor(alarm: EarliestAlarm) {
    this.#alarm = alarm;
  }

  succeeded(work: Work): void {
    this.#failures.delete(work);
  }

  failed(work: Work, projectId: string, error: unknown): void {
    logEvent(work, { project_id: projectId, ...jobError(error) });
    const failures = this.#failures.get(work) ?? 0;
    this.#alarm.wakeAt(Date.now() + retryDelay(ATTEMPTS_AHEAD + failures));
    this.#failures.set(work, failures + 1);
  }
}
