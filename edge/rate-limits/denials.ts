import { BoundedMap } from '../bounded-map.ts';

interface Denial<T> {
  value: T;
  /** By the clock of this isolate: Unix milliseconds. */
  until: number;
}

/**
 * What an isolate remembers of refusals, each for the time that its object said the window still lasts. The two
 * clocks are never compared: this one measures the time that passes and nothing else.
 */
export class Denials<T> {
  readonly #limit: number;
  #denials: BoundedMap<string, Denial<T>>;
  #latest = 0;

  constructor(limit: number) {
    this.#limit = limit;
    this.#denials = new BoundedMap(limit);
  }

  /** @param now Unix milliseconds; if it is less than ever before, the clock went back and measures nothing */
  get(key: string, now: number): Denial<T> | undefined {
    if (now < this.#latest) this.#denials = new BoundedMap(this.#limit);
    this.#latest = now;
    const denial = this.#denials.get(key);
    return denial && now < denial.until ? denial : undefined;
  }

  /** @param askedAt when the object was asked, not when it answered: the trip is not added to the window */
  remember(key: string, value: T, { askedAt, restMs }: { askedAt: number; restMs: number }): void {
    this.#denials.set(key, { value, until: askedAt + restMs });
  }
}
