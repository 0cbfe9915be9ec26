import { z } from 'zod';
import { quotaBytes, STORAGE_STATES } from '../../shared/project/storage-quota.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import type { ProjectView } from '../projects/project-resource.ts';
import { ALERT_NAMES, alertsOf } from './alert-advice.ts';
import type { LastMeasurement } from './measurement-store.ts';
import type { Range } from './metric-history.ts';
import { type BranchValues, METRIC_NAMES, METRICS, type MetricName, type Point } from './metrics.ts';

const Count = z.int().nonnegative();
const Ratio = z.number().min(0).max(1);
const ObservedAt = z.iso.datetime().nullable().meta({
  description: 'When the values were measured; null before the first measurement, all are 0 then.',
});
const Stale = z
  .boolean()
  .meta({ description: 'The host is away, or measurements have not come.', example: false });

const Alert = z.strictObject({
  name: z.enum(ALERT_NAMES),
  value: z.number().meta({ example: 0.93 }),
  threshold: z.number().meta({ example: 0.9 }),
});

/** Spec 2.6, and how fresh it is. */
export const MetricsSummary = z
  .strictObject({
    project_id: z.uuid(),
    branch_id: z.uuid(),
    branch_name: z.string().meta({ example: 'checkout-redesign' }),
    database: z.string().meta({ example: 'db_web_shop_prod_br_checkout-redesign' }),
    metrics: z.strictObject({
      database_size_bytes: Count.meta({ example: 8_388_608 }),
      active_connections: Count.meta({ example: 4 }),
      cache_hit_ratio: Ratio.meta({ example: 0.998 }),
    }),
    usage: z.strictObject({
      storageUsedBytes: Count.meta({ description: 'Of the whole project.', example: 25_165_824 }),
      storageLimitBytes: Count.meta({ example: 268_435_456 }),
    }),
    observed_at: ObservedAt,
    stale: Stale,
    alerts: z
      .array(Alert)
      .optional()
      .meta({ description: 'With `include=alerts`: recommended thresholds that are passed.' }),
  })
  .meta({ id: 'MetricsSummary' });

export const MetricsSeries = z
  .strictObject({
    start: z.iso.datetime(),
    end: z.iso.datetime(),
    step_seconds: z.int().meta({ example: 60 }),
    observed_at: ObservedAt,
    stale: Stale,
    series: z.array(
      z.strictObject({
        metric: z.enum(METRIC_NAMES),
        unit: z.enum(['seconds', 'count', 'ratio', 'bytes']),
        values: z.array(z.strictObject({ timestamp: z.iso.datetime(), value: z.number() })),
      }),
    ),
  })
  .meta({ id: 'MetricsSeries' });

export const ProjectUsage = z
  .strictObject({
    project_id: z.uuid(),
    storage_used_bytes: Count.meta({ description: 'Active branches together.', example: 25_165_824 }),
    storage_limit_bytes: Count.meta({ example: 268_435_456 }),
    storage_quota_gib: z.number().meta({ example: 0.25 }),
    usage_percent: z.number().meta({ example: 9.38 }),
    storage_state: z.enum(STORAGE_STATES),
    observed_at: ObservedAt,
    stale: Stale,
    branches: z.array(
      z.strictObject({
        branch_id: z.uuid(),
        branch_name: z.string().meta({ example: 'main' }),
        database: z.string().meta({ example: 'db_web_shop_prod' }),
        database_size_bytes: Count.meta({ example: 8_388_608 }),
      }),
    ),
  })
  .meta({ id: 'ProjectUsage' });

type Branch = Pick<BranchRow, 'id' | 'branchName' | 'databaseName'>;

/** What is told of measurements; `stale` when the host is away or they have not come. */
export interface Measured {
  last: LastMeasurement | null;
  stale: boolean;
}

/** Nothing was read yet, so nothing was missed. */
const NO_MISS = 1;

const freshness = ({ last, stale }: Measured) => ({
  observed_at: last && new Date(last.at).toISOString(),
  stale,
});

/** @param active the branches that count */
export function metricsSummary(
  project: ProjectView,
  branch: BranchRow,
  active: readonly Branch[],
  measured: Measured,
  withAlerts: boolean,
): z.output<typeof MetricsSummary> {
  const values: BranchValues | undefined = measured.last?.branches[branch.id];
  const limit = quotaBytes(project.storageQuotaGib);
  const used = usedBytes(measured.last, active);
  const advised = values && { values, storage: used / limit, branchCount: project.branchCount };
  return {
    project_id: project.id,
    branch_id: branch.id,
    branch_name: branch.branchName,
    database: branch.databaseName,
    metrics: {
      database_size_bytes: values?.database_size_bytes ?? 0,
      active_connections: values?.active_connections ?? 0,
      cache_hit_ratio: values?.cache_hit_ratio ?? NO_MISS,
    },
    usage: { storageUsedBytes: used, storageLimitBytes: limit },
    ...freshness(values ? measured : { last: null, stale: true }),
    ...(withAlerts && { alerts: advised ? alertsOf(advised) : [] }),
  };
}

/** The points as one series a metric; a value that was not measured is left out. */
export const metricsSeries = (
  { start, end, step }: Range,
  metrics: readonly MetricName[],
  measured: Measured & { points: Point[] },
): z.output<typeof MetricsSeries> => ({
  start: new Date(start).toISOString(),
  end: new Date(end).toISOString(),
  step_seconds: step / 1000,
  ...freshness(measured),
  series: metrics.map((metric) => ({
    metric,
    unit: METRICS[metric].unit,
    values: measured.points.flatMap(({ at, values }) => {
      const value = values[metric];
      return value === null ? [] : [{ timestamp: new Date(at).toISOString(), value }];
    }),
  })),
});

const sizeOf = (last: LastMeasurement | null, branchId: string) =>
  last?.branches[branchId]?.database_size_bytes ?? 0;

/** Bytes of these branches together. */
const usedBytes = (last: LastMeasurement | null, branches: readonly Branch[]): number =>
  branches.reduce((sum, { id }) => sum + sizeOf(last, id), 0);

/** @param branches the ones that count */
export function projectUsage(
  project: ProjectView,
  branches: readonly Branch[],
  measured: Measured,
): z.output<typeof ProjectUsage> {
  const used = usedBytes(measured.last, branches);
  const limit = quotaBytes(project.storageQuotaGib);
  return {
    project_id: project.id,
    storage_used_bytes: used,
    storage_limit_bytes: limit,
    storage_quota_gib: project.storageQuotaGib,
    usage_percent: Number(((100 * used) / limit).toFixed(2)),
    storage_state: project.storageState,
    ...freshness(measured),
    branches: branches.map(({ id, branchName, databaseName }) => ({
      branch_id: id,
      branch_name: branchName,
      database: databaseName,
      database_size_bytes: sizeOf(measured.last, id),
    })),
  };
}
