import type { BranchMeasurement } from '../../shared/measurement.ts';

/** How several measurements of one metric within a step are combined. */
type Aggregation = 'last' | 'peak' | 'mean';

interface Metric {
  unit: 'seconds' | 'count' | 'ratio' | 'bytes';
  aggregation: Aggregation;
}

/** The metrics of specification 2.7, and those that branchgate adds. Counters never decrease. */
export const METRICS = {
  cpu_seconds: { unit: 'seconds', aggregation: 'last' },
  active_connections: { unit: 'count', aggregation: 'peak' },
  total_connections: { unit: 'count', aggregation: 'last' },
  transactions_committed: { unit: 'count', aggregation: 'last' },
  transactions_rolled_back: { unit: 'count', aggregation: 'last' },
  rows_fetched: { unit: 'count', aggregation: 'last' },
  rows_inserted: { unit: 'count', aggregation: 'last' },
  rows_updated: { unit: 'count', aggregation: 'last' },
  rows_deleted: { unit: 'count', aggregation: 'last' },
  cache_hit_ratio: { unit: 'ratio', aggregation: 'mean' },
  database_size_bytes: { unit: 'bytes', aggregation: 'last' },
  file_count: { unit: 'count', aggregation: 'last' },
  memory_bytes: { unit: 'bytes', aggregation: 'peak' },
  longest_query_seconds: { unit: 'seconds', aggregation: 'peak' },
  connection_wait_seconds: { unit: 'seconds', aggregation: 'peak' },
  dead_tuple_ratio: { unit: 'ratio', aggregation: 'last' },
  following_lag_seconds: { unit: 'seconds', aggregation: 'peak' },
} as const satisfies Record<Exclude<keyof BranchMeasurement, 'branch_id'>, Metric>;

export type MetricName = keyof typeof METRICS;
export const METRIC_NAMES = Object.keys(METRICS) as [MetricName, ...MetricName[]];

/** The values of a branch at one time; those that are not known are null. */
export type BranchValues = Omit<BranchMeasurement, 'branch_id'>;

/** The values of a branch at one time or over one step, with the timestamp of its last measurement. */
export interface Point {
  /** Unix milliseconds. */
  at: number;
  values: BranchValues;
}

export interface MetricValue {
  /** Unix milliseconds. */
  at: number;
  value: number;
}

const AGGREGATE: Record<Aggregation, (values: number[]) => number | undefined> = {
  last: (values) => values.at(-1),
  peak: (values) => Math.max(...values),
  mean: (values) => values.reduce((sum, value) => sum + value, 0) / values.length,
};

/** The start of the step that contains `at`; all in milliseconds. */
export const startOfStep = (at: number, step: number): number => Math.floor(at / step) * step;

/** Combines the points of each step into one. @param points oldest first @param step milliseconds */
export function aggregate(points: readonly Point[], step: number): Point[] {
  return [...Map.groupBy(points, ({ at }) => startOfStep(at, step)).values()].map((group) => ({
    at: Math.max(...group.map(({ at }) => at)),
    values: Object.fromEntries(
      METRIC_NAMES.map((name) => {
        const measured = group.flatMap(({ values }) => values[name] ?? []);
        const { aggregation } = METRICS[name];
        return [name, measured.length > 0 ? AGGREGATE[aggregation](measured) : null];
      }),
    ) as unknown as BranchValues,
  }));
}
