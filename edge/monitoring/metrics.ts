import type { BranchMeasurement } from '../../shared/measurement.ts';

/** What stands for several measurements of one metric, when their step is longer than the time between them. */
type Gathering = 'last' | 'peak' | 'mean';

interface Metric {
  unit: 'seconds' | 'count' | 'ratio' | 'bytes';
  gathering: Gathering;
}

/** Spec 2.7, the cache hit ratio and the size. What is counted since the branch was made never falls. */
export const METRICS = {
  cpu_seconds: { unit: 'seconds', gathering: 'last' },
  active_connections: { unit: 'count', gathering: 'peak' },
  total_connections: { unit: 'count', gathering: 'last' },
  transactions_committed: { unit: 'count', gathering: 'last' },
  transactions_rolled_back: { unit: 'count', gathering: 'last' },
  rows_fetched: { unit: 'count', gathering: 'last' },
  rows_inserted: { unit: 'count', gathering: 'last' },
  rows_updated: { unit: 'count', gathering: 'last' },
  rows_deleted: { unit: 'count', gathering: 'last' },
  cache_hit_ratio: { unit: 'ratio', gathering: 'mean' },
  database_size_bytes: { unit: 'bytes', gathering: 'last' },
} as const satisfies Record<Exclude<keyof BranchMeasurement, 'branch_id'>, Metric>;

export type MetricName = keyof typeof METRICS;
export const METRIC_NAMES = Object.keys(METRICS) as [MetricName, ...MetricName[]];

/** What a branch had at one moment; the ratio is null when nothing was read since the moment before. */
export type BranchValues = Omit<BranchMeasurement, 'branch_id'>;

/** A branch at one moment, or over one step: then the moment is that of the last measurement in it. */
export interface Point {
  /** Unix milliseconds. */
  at: number;
  values: BranchValues;
}

const GATHER: Record<Gathering, (values: number[]) => number | undefined> = {
  last: (values) => values.at(-1),
  peak: (values) => Math.max(...values),
  mean: (values) => values.reduce((sum, value) => sum + value, 0) / values.length,
};

/** The start of the step that the moment is in; both in milliseconds. */
export const startOfStep = (at: number, step: number): number => Math.floor(at / step) * step;

/** One point for each step that has any. @param points oldest first @param step milliseconds */
export function gather(points: readonly Point[], step: number): Point[] {
  return [...Map.groupBy(points, ({ at }) => startOfStep(at, step)).values()].map((group) => ({
    at: Math.max(...group.map(({ at }) => at)),
    values: Object.fromEntries(
      METRIC_NAMES.map((name) => {
        const measured = group.flatMap(({ values }) => values[name] ?? []);
        const { gathering } = METRICS[name];
        return [name, measured.length > 0 ? GATHER[gathering](measured) : null];
      }),
    ) as unknown as BranchValues,
  }));
}
