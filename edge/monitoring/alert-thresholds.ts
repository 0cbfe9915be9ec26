import type { BranchValues } from './metrics.ts';

/** The inputs of the alert thresholds: a branch, and its project. */
export interface Advised {
  values: BranchValues;
  /** The used share of the quota. */
  storage: number;
  branchCount: number;
}

interface Advice {
  /** Null if it is unknown. */
  value: (advised: Advised) => number | null;
  threshold: number;
  alarming: 'at_least' | 'above' | 'below';
}

/** The recommended alert thresholds of specification 8. */
export const ADVICE = {
  storage: { value: ({ storage }) => storage, threshold: 0.9, alarming: 'at_least' },
  active_connections: {
    value: ({ values }) => values.active_connections,
    threshold: 180,
    alarming: 'at_least',
  },
  branch_count: { value: ({ branchCount }) => branchCount, threshold: 10, alarming: 'at_least' },
  cache_hit_ratio: { value: ({ values }) => values.cache_hit_ratio, threshold: 0.9, alarming: 'below' },
  rollback_ratio: {
    value: ({ values: { transactions_rolled_back: back, transactions_committed: committed } }) =>
      back / Math.max(committed, 1),
    threshold: 0.05,
    alarming: 'above',
  },
  dead_tuple_ratio: { value: ({ values }) => values.dead_tuple_ratio, threshold: 0.2, alarming: 'above' },
  longest_query_seconds: {
    value: ({ values }) => values.longest_query_seconds,
    threshold: 30,
    alarming: 'above',
  },
  connection_wait_seconds: {
    value: ({ values }) => values.connection_wait_seconds,
    threshold: 5,
    alarming: 'above',
  },
} as const satisfies Record<string, Advice>;

export type AlertName = keyof typeof ADVICE;
export const ALERT_NAMES = Object.keys(ADVICE) as [AlertName, ...AlertName[]];

const IS_ALARMING: Record<Advice['alarming'], (value: number, threshold: number) => boolean> = {
  at_least: (value, threshold) => value >= threshold,
  above: (value, threshold) => value > threshold,
  below: (value, threshold) => value < threshold,
};

/** The crossed thresholds, each with its current value. */
export const alertsOf = (advised: Advised): { name: AlertName; value: number; threshold: number }[] =>
  ALERT_NAMES.flatMap((name) => {
    const { threshold, alarming, ...advice } = ADVICE[name];
    const value = advice.value(advised);
    // A measurement of an earlier release lacks later metrics.
    return value != null && IS_ALARMING[alarming](value, threshold) ? [{ name, value, threshold }] : [];
  });
