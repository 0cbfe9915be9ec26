import { BoundedMap } from '../bounded-map.ts';

interface Denial<T> {
  value: T;
  /** By the clock of this isolate: Unix milliseconds. */
  until: number;
}

/**
 * A cache of denials, each until the end of its window. The clocks of the isolate and of the object are never
 * compared: the isolate's clock only measures how much of the remaining time has passed.
 */
export class Denials<T> {
  readonly #limit: number;
  #denials: BoundedMap<string, Denial<T>>;
  #latest = 0;

  constructor(limit: number) {
    this.#limit = limit;
    this.#denials = new BoundedMap(limit);
  }

  /** @param now Unix milliseconds; if the clock was set back, all denials are discarded */
  get(key: string, now: number): Denial<T> | undefined {
    if (now < this.#latest) this.#denials = new BoundedMap(this.#limit);
    this.#latest = now;
    const denial = this.#denials.get(key);
    return denial && now < denial.until ? denial : undefined;
  }

  /** @param calledAt when the call was sent; the time of its response would extend the window by the round trip */
  remember(key: string, value: T, { calledAt, restMs }: { calledAt: number; restMs: number }): void {
    this.#denials.set(key, { value, until: calledAt + restMs });
  }
}
