import { queryOptions } from '@tanstack/react-query';
import { dataOf } from '../../../client/response-error.ts';
import { bytes, compact, percent } from '../../../shared/format.ts';
import { api } from '../../data/gateway.ts';
import { inBranch, type MetricName } from '../../data/resources.ts';

export const RANGES = {
  '1h': 3_600,
  '6h': 21_600,
  '24h': 86_400,
  '7d': 604_800,
  '30d': 2_592_000,
  '1y': 31_536_000,
};
export type RangeName = keyof typeof RANGES;
export const RANGE_NAMES = Object.keys(RANGES) as RangeName[];

/** A chart: one metric as it is, or the change of a counter per second. */
export interface Chart {
  metric: MetricName;
  rate?: boolean;
  format: (value: number) => string;
  /** Distances of the marks on its axis, so that they are round in its unit. */
  steps?: number[];
}

/** 1, 2 and 5 times each power of ten, for what is counted. */
const WHOLE = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat();
/** The same, and parts of one, for what happens in a second. */
const TENTHS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, ...WHOLE];
/** Powers of two. */
const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power);

const perSecond = (value: number) =>
  value > 0 && value < 1 ? `${Number(value.toPrecision(2))}/s` : `${compact(value)}/s`;

/** The first ones are shown without being asked for. */
export const CHARTS: readonly Chart[] = [
  { metric: 'active_connections', format: compact, steps: WHOLE },
  { metric: 'cpu_seconds', rate: true, format: percent },
  { metric: 'transactions_committed', rate: true, format: perSecond, steps: TENTHS },
  { metric: 'database_size_bytes', format: bytes, steps: BINARY },
  { metric: 'total_connections', rate: true, format: perSecond, steps: TENTHS },
  { metric: 'transactions_rolled_back', rate: true, format: perSecond, steps: TENTHS },
  { metric: 'rows_fetched', rate: true, format: perSecond, steps: TENTHS },
  { metric: 'rows_inserted', rate: true, format: perSecond, steps: TENTHS },
  { metric: 'rows_updated', rate: true, format: perSecond, steps: TENTHS },
  { metric: 'rows_deleted', rate: true, format: perSecond, steps: TENTHS },
  { metric: 'cache_hit_ratio', format: percent },
];

/** How far `main` is behind what it follows. */
export const LAG_CHART: Chart = {
  metric: 'following_lag_seconds',
  format: (seconds) => `${compact(seconds)} s`,
  steps: TENTHS,
};

const POLL_MS = 15_000;
/** Points of a chart: more than it has pixels would only cost time. */
const POINTS = 720;

/** @param isLive whether the measurements of the branch arrive by themselves */
export const seriesQuery = (projectId: string, branch: string, range: RangeName, isLive: boolean) =>
  queryOptions({
    queryKey: ['series', projectId, branch, range],
    queryFn: ({ signal }) => {
      const end = Date.now();
      const start = end - RANGES[range] * 1000;
      const step = Math.max(60, Math.ceil(RANGES[range] / POINTS / 60) * 60);
      const query = { start: new Date(start).toISOString(), end: new Date(end).toISOString(), step };
      return dataOf(
        api.GET('/api/v1/projects/{project_id}/branches/{branch_ref}/metrics', {
          params: { ...inBranch(projectId, branch), query },
          signal,
        }),
      );
    },
    refetchInterval: isLive ? false : POLL_MS,
    placeholderData: (before) => before,
  });

const BLOCKS = 100;

/** The last blocks in a project, by the audit log. */
export const blocksQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['blocks', projectId],
    queryFn: async ({ signal }) => {
      const query = { name: 'branch.blocked' as const, project_id: projectId, limit: BLOCKS };
      return (await dataOf(api.GET('/api/v1/audit-events', { params: { query }, signal }))).audit_events;
    },
    refetchInterval: POLL_MS,
  });

export interface Point {
  /** Unix seconds. */
  at: number;
  value: number;
}

/** The change of a counter per second; a gap where it started again. */
function rateOf(points: readonly Point[]): Point[] {
  return points.slice(1).flatMap(({ at, value }, index) => {
    const before = points[index];
    if (!before || at <= before.at || value < before.value) return [];
    return [{ at, value: (value - before.value) / (at - before.at) }];
  });
}

interface Series {
  metric: string;
  values: { timestamp: string; value: number }[];
}

export function pointsOf(series: readonly Series[] | undefined, { metric, rate }: Chart): Point[] {
  const values = series?.find((each) => each.metric === metric)?.values ?? [];
  const points = values.map(({ timestamp, value }) => ({ at: Date.parse(timestamp) / 1000, value }));
  return rate ? rateOf(points) : points;
}

/** Two series over the timestamps of both, with null where one has no value. */
export function aligned(first: readonly Point[], second: readonly Point[]): (number | null)[][] {
  const times = [...new Set([...first, ...second].map(({ at }) => at))].sort((one, other) => one - other);
  const column = (points: readonly Point[]) => {
    const values = new Map(points.map(({ at, value }) => [at, value]));
    return times.map((at) => values.get(at) ?? null);
  };
  return [times, column(first), column(second)];
}
