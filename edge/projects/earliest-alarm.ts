/** The one alarm of an object, for all that ask for one: the earliest moment stands. */
export class EarliestAlarm {
  readonly #storage: Pick<DurableObjectStorage, 'getAlarm' | 'setAlarm'>;
  #at = Number.POSITIVE_INFINITY;

  constructor(storage: Pick<DurableObjectStorage, 'getAlarm' | 'setAlarm'>) {
    this.#storage = storage;
  }

  /** Before anything else: a fresh object must not put a later alarm in the place of an earlier one. */
  async recall(): Promise<void> {
    this.#at = (await this.#storage.getAlarm()) ?? Number.POSITIVE_INFINITY;
  }

  /** @param moment Unix milliseconds. One that is due and has not rung yet stands too. */
  wakeAt(moment: number): void {
    if (moment >= this.#at) return;
    this.#at = moment;
    void this.#storage.setAlarm(moment);
  }

  /** It rings, or is gone with the storage. */
  spent(): void {
    this.#at = Number.POSITIVE_INFINITY;
  }
}
