/** A map of at most `limit` entries that evicts the least recently used one. */
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
    if (value !== undefined) this.#moveToEnd(key, value);
    return value;
  }

  set(key: K, value: V): void {
    this.#moveToEnd(key, value);
    if (this.#entries.size <= this.#limit) return;
    for (const oldest of this.#entries.keys()) {
      this.#entries.delete(oldest);
      return;
    }
  }

  /** A `Map` iterates in insertion order, so the first entry is the least recently used one. */
  #moveToEnd(key: K, value: V): void {
    this.#entries.delete(key);
    this.#entries.set(key, value);
  }
}
