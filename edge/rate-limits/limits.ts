import type { Settings } from '../settings.ts';

export interface Limit {
  /** How many requests one window lets through. */
  max: (settings: Settings) => number;
  windowSeconds: number;
  /**
   * When a count reaches storage. A count that keeps an attacker off is there before its request is answered, so
   * that no crash gives new tries; the others may lose what their last second counted.
   */
  written: 'within_a_second' | 'before_the_answer';
}

/** Spec section 8. */
export const LIMITS = {
  reads: {
    max: ({ LIMIT_READS_PER_MINUTE }) => LIMIT_READS_PER_MINUTE,
    windowSeconds: 60,
    written: 'within_a_second',
  },
  writes: {
    max: ({ LIMIT_WRITES_PER_MINUTE }) => LIMIT_WRITES_PER_MINUTE,
    windowSeconds: 60,
    written: 'within_a_second',
  },
  public: {
    max: ({ LIMIT_PUBLIC_PER_MINUTE }) => LIMIT_PUBLIC_PER_MINUTE,
    windowSeconds: 60,
    written: 'within_a_second',
  },
  failed_authentication: {
    max: ({ LIMIT_PUBLIC_PER_MINUTE }) => LIMIT_PUBLIC_PER_MINUTE,
    windowSeconds: 60,
    written: 'before_the_answer',
  },
  rotations: { max: () => 5, windowSeconds: 3600, written: 'before_the_answer' },
} satisfies Record<string, Limit>;

export type LimitName = keyof typeof LIMITS;
export type LimitTable = Record<LimitName, Limit>;
