/** A map that forgets what was longest unused when it would hold more than `limit` entries. */
export class BoundedMap<K, V> {
  readonly #entries = new Map<K, V>();
  readonly #limit: number;

  constructor(limit: number) {
    this.#limit = limit;
  }

  get size(): number {
    return this.#entries.size;
  }

  get(key: K): V | undefined {
    const value = this.#entries.get(key);
    if (value !== undefined) this.#putLast(key, value);
    return value;
  }

  set(key: K, value: V): void {
    this.#putLast(key, value);
    if (this.#entries.size <= this.#limit) return;
    for (const oldest of this.#entries.keys()) {
      this.#entries.delete(oldest);
      return;
    }
  }

  /** A `Map` keeps the order of insertion, so the first entry is the one longest unused. */
  #putLast(key: K, value: V): void {
    this.#entries.delete(key);
    this.#entries.set(key, value);
  }
}
