/**
 * How long a lock that conflicts would have waited, at each moment of a sample: until everybody who held the table then has
 * released it.
 */

/** A transaction that holds a lock on a table. */
export interface Holder {
  /** Milliseconds since its transaction began. */
  age: number;
  /** `application_name` of its session. */
  name: string;
}

/** Waits up to `10 × 1.3^n` milliseconds are in bucket `n`, longer ones in the last. */
const FIRST_MS = 10;
const GROWTH = 1.3;
export const BUCKETS = 54;

export const bucketOf = (ms: number): number =>
  Math.min(BUCKETS - 1, Math.max(0, Math.ceil(Math.log(ms / FIRST_MS) / Math.log(GROWTH))));
/** The longest wait of a bucket, in milliseconds. */
export const longestOf = (bucket: number): number => Math.round(FIRST_MS * GROWTH ** bucket);

/** A moment at which somebody held the table. */
export interface SeenWait {
  at: number;
  ms: number;
  /** `application_name` of the session that held it for longest. */
  behind: string;
}

/** The holders of one table. */
export class WaitRecord {
  readonly #holders = new Map<string, Holder & { since: number }>();
  /** The first moment whose wait is not known yet. */
  #from = Number.POSITIVE_INFINITY;

  get isHeld(): boolean {
    return this.#holders.size > 0;
  }

  /**
   * @param at of this sample, and `last` of the one before, in milliseconds
   * @param every between two moments
   * @returns the moments whose wait is known now
   */
  add(
    seen: ReadonlyMap<string, Holder>,
    { at, last, every }: { at: number; last: number; every: number },
  ): SeenWait[] {
    const ended = [...this.#holders].filter(([key]) => !seen.has(key)).map(([, holder]) => holder);
    for (const [key, { since }] of this.#holders) {
      const holder = seen.get(key);
      if (holder) this.#holders.set(key, { ...holder, since });
      else this.#holders.delete(key);
    }
    const until = Math.min(at, ...[...this.#holders.values()].map(({ since }) => since));
    const waits = ended.length > 0 ? this.#waitsUntil(until, ended, { at, last, every }) : [];
    for (const [key, holder] of seen)
      if (!this.#holders.has(key)) this.#holders.set(key, { ...holder, since: at });
    this.#from = Math.min(...[...this.#holders.values()].map(({ since }) => since));
    return waits;
  }

  #waitsUntil(
    until: number,
    ended: readonly Holder[],
    { at, last, every }: { at: number; last: number; every: number },
  ): SeenWait[] {
    // Seen in one sample only, a transaction has half of its time before it.
    const [longest] = ended.toSorted((one, other) => other.age - one.age);
    const end = last + Math.min((at - last) / 2, longest?.age ?? 0);
    const waits: SeenWait[] = [];
    for (let moment = this.#from; moment < until && moment <= last; moment += every)
      waits.push({ at: moment, ms: end - moment, behind: longest?.name ?? '' });
    return waits;
  }
}
