import { createHash } from 'node:crypto';

/**
 * Deterministic random numbers: the nth draw is a hash of the seed's text and n, so it is the same on every
 * machine and with every version of Node.
 */
export class Random {
  readonly #seed: string;
  #drawn = 0;

  constructor(seed: string) {
    this.#seed = seed;
  }

  /** @returns an independent sequence of the same seed */
  fork(name: string): Random {
    return new Random(`${this.#seed}/${name}`);
  }

  /** @returns an integer from `least` to `most` */
  int(least: number, most: number): number {
    const digest = createHash('sha256')
      .update(`${this.#seed}#${this.#drawn++}`)
      .digest();
    return least + (digest.readUIntBE(0, 6) % (most - least + 1));
  }

  /** @param percent probability of true */
  chance(percent: number): boolean {
    return this.int(1, 100) <= percent;
  }

  /** @throws Error when there is nothing to pick from */
  pick<T>(items: readonly T[]): T {
    const item = items[this.int(0, items.length - 1)];
    if (item === undefined) throw new Error('nothing to pick from');
    return item;
  }

  /** @returns one of the names, weighted */
  weighted<Name extends string>(weights: Partial<Record<Name, number>>): Name {
    const names = Object.entries<number | undefined>(weights).flatMap(([name, weight = 0]) =>
      Array.from({ length: weight }, () => name as Name),
    );
    return this.pick(names);
  }
}
