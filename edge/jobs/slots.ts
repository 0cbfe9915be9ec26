/** A fixed number of places; who finds none waits in order of arrival. */
export class Slots {
  #free: number;
  readonly #queue: (() => void)[] = [];

  constructor(places: number) {
    this.#free = places;
  }

  /** @returns gives the place back; to be called once */
  async take(): Promise<() => void> {
    if (this.#free > 0) this.#free -= 1;
    else await new Promise<void>((resolve) => this.#queue.push(resolve));
    return () => {
      const next = this.#queue.shift();
      if (next) next();
      else this.#free += 1;
    };
  }
}
