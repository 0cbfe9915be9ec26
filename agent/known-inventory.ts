/** What the gateway knows of this host, by the inventory that was last read for it. */
export class KnownInventory {
  readonly #leastChange: number;
  #freeBytes: number | null = null;
  #isOutdated = false;

  /** @param leastChange of the free space that matters, in bytes: on a nearly full disk every statement halves or doubles it */
  constructor(leastChange: number) {
    this.#leastChange = leastChange;
  }

  /** Called before an inventory is read, so that the gateway does not count as knowing what changes meanwhile. */
  beginReading(): void {
    this.#isOutdated = false;
  }

  /** @param freeBytes as the inventory reports them */
  endReading(freeBytes: number): void {
    this.#freeBytes = freeBytes;
  }

  /** Called after a change of what the host holds that no operation of the gateway made. */
  outdate(): void {
    this.#isOutdated = true;
  }

  /**
   * Whether the gateway has to read the inventory again: something has changed, or half of the free space was used or
   * has become free. It places projects by this space.
   */
  isOutdated(freeBytes: number): boolean {
    if (this.#isOutdated) return true;
    if (this.#freeBytes === null) return false;
    const [less = 0, more = 0] = [freeBytes, this.#freeBytes].sort((a, b) => a - b);
    return less < more / 2 && more - less >= this.#leastChange;
  }
}
