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
   * As `wakeAt`, and also if another user's alarm fires before: that one finds nothing of a write that comes after it.
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
