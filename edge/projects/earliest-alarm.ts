/** The single alarm of a Durable Object, shared by several users: the earliest timestamp is set. */
export class EarliestAlarm {
  readonly #storage: Pick<DurableObjectStorage, 'getAlarm' | 'setAlarm'>;
  #at = Number.POSITIVE_INFINITY;

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

  /** The alarm has fired, or was deleted with the storage. */
  spent(): void {
    this.#at = Number.POSITIVE_INFINITY;
  }
}
