/** A lock that some session holds at the time of a sample. */
export interface HeldLock {
  relation: string;
  mode: string;
}

/** What is stored of the samples so far. */
export interface LockSummary {
  samples: number;
  longest_gap_ms: number;
  /** Milliseconds since the epoch; null before the first sample. */
  sampled_at: number | null;
  /** The longest time that a mode was held, in milliseconds, by `relation mode`. */
  longest: Record<string, number>;
}

export const NO_SAMPLES: LockSummary = { samples: 0, longest_gap_ms: 0, sampled_at: null, longest: {} };

const keyOf = ({ relation, mode }: HeldLock) => `${relation} ${mode}`;

/**
 * Measures from samples how long locks are held: from the first sample that shows one to the first that does
 * not.
 */
export class LockRecord {
  readonly #since = new Map<string, number>();
  #summary: LockSummary;

  constructor(summary: LockSummary) {
    this.#summary = { ...summary, longest: { ...summary.longest } };
  }

  /** @param at milliseconds since the epoch */
  add(at: number, held: readonly HeldLock[]): void {
    const { samples, sampled_at, longest_gap_ms, longest } = this.#summary;
    const gap = sampled_at === null ? 0 : at - sampled_at;
    const keys = new Set(held.map(keyOf));
    for (const key of keys) if (!this.#since.has(key)) this.#since.set(key, at);
    for (const [key, since] of this.#since) {
      longest[key] = Math.max(longest[key] ?? 0, Math.round(at - since));
      if (!keys.has(key)) this.#since.delete(key);
    }
    this.#summary = {
      samples: samples + 1,
      sampled_at: at,
      longest_gap_ms: Math.max(longest_gap_ms, Math.round(gap)),
      longest,
    };
  }

  get summary(): LockSummary {
    return this.#summary;
  }
}

/** The modes of each table, the one held longest first. */
export function locksByRelation({ longest }: LockSummary) {
  const locks = Object.entries(longest)
    .map(([key, longest_ms]) => {
      const [relation = '', mode = ''] = key.split(' ');
      return { relation, mode, longest_ms };
    })
    .toSorted((a, b) => b.longest_ms - a.longest_ms);
  return Map.groupBy(locks, ({ relation }) => relation);
}
