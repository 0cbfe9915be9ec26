import { z } from 'zod';
import { PROJECT_FILES_MAX } from '../../shared/limits.ts';
import { quotaBytes, StorageStateField } from '../../shared/project/storage-quota.ts';
import type { BranchRow, SnapshotRow } from '../database/schema.ts';
import type { ProjectView } from '../tenancy/project-access.ts';
import { ALERT_NAMES, alertsOf } from './alert-thresholds.ts';
import { filesOf, type Recorded } from './measurements.ts';
import { finestStep, type Range } from './metric-history.ts';
import {
  type BranchValues,
  METRIC_NAMES,
  METRICS,
  type MetricName,
  type MetricValue,
  type Point,
} from './metrics.ts';

/** Points per series in one response: a little more than one day at one point a minute. */
const POINTS_MAX = 1500;

/** The same for a response with all branches of a project. */
export const POINTS_OF_EACH_MAX = 200;

const HOUR_MS = 3_600_000;

const STEP = { min: 60, max: 30 * 86_400 } as const;

const Timestamp = z.iso.datetime({ offset: true }).transform((text) => Date.parse(text));

/** The query parameters that select the points of a series. */
export const SeriesRange = {
  start: Timestamp.optional().meta({
    description: 'Start of the range, ISO 8601. Default: one hour before `end`.',
    example: '2026-01-31T11:00:00Z',
  }),
  end: Timestamp.optional().meta({
    description: 'End of the range, ISO 8601. Default: now.',
    example: '2026-01-31T12:00:00Z',
  }),
  step: z.coerce
    .number()
    .int()
    .min(STEP.min)
    .max(STEP.max)
    .optional()
    .meta({
      description: `Seconds between points. Default: the finest resolution available. One point per minute is available for 24 hours, one per hour for 30 days and one per day for a year; a step shorter than the resolution available since \`start\` is rounded up to it. At most ${POINTS_MAX} points per metric are returned.`,
      example: 60,
    }),
};

/**
 * @returns the range, or an entry for the `details` of VALIDATION_FAILED when the range is invalid or too
 *   long
 */
export function rangeOf(
  query: { start?: number | undefined; end?: number | undefined; step?: number | undefined },
  now: number,
  pointsMax = POINTS_MAX,
): Range | { path: string; message: string } {
  const end = Math.min(query.end ?? now, now);
  const start = query.start ?? end - HOUR_MS;
  if (start > end) return { path: 'start', message: 'Must be before end and not in the future.' };
  const finest = finestStep(start, now);
  const step = Math.max((query.step ?? 0) * 1000, finest);
  const points = Math.floor((end - start) / step) + 1;
  if (points <= pointsMax) return { start, end, step };
  return {
    path: 'step',
    message: `Too small: ${points} points would result, at most ${pointsMax} are allowed.`,
  };
}

const Count = z.int().nonnegative();

const Ratio = z.number().min(0).max(1);

const ObservedAt = z.iso.datetime().nullable().meta({
  description: 'When the values were measured; null before the first measurement, when all values are 0.',
});

const Stale = z
  .boolean()
  .meta({ description: 'The host is not connected, or measurements are overdue.', example: false });

const Alert = z.strictObject({
  name: z.enum(ALERT_NAMES),
  value: z.number().meta({ description: 'The current value.', example: 0.93 }),
  threshold: z.number().meta({ description: 'The recommended threshold that it crossed.', example: 0.9 }),
});

/** The summary of specification 2.6, and how recent it is. */
export const MetricsSummary = z
  .strictObject({
    project_id: z.uuid(),
    branch_id: z.uuid(),
    branch_name: z.string().meta({ example: 'checkout-redesign' }),
    database: z.string().meta({ example: 'db_web_shop_prod_br_checkout-redesign' }),
    metrics: z.strictObject({
      database_size_bytes: Count.meta({ example: 8_388_608 }),
      active_connections: Count.meta({ example: 4 }),
      cache_hit_ratio: Ratio.meta({
        description: 'Share of block reads served from the buffer cache, from 0 to 1.',
        example: 0.998,
      }),
    }),
    usage: z.strictObject({
      storageUsedBytes: Count.meta({
        description: 'Total size of the active branches of the project.',
        example: 25_165_824,
      }),
      storageLimitBytes: Count.meta({ description: 'Storage quota of the project.', example: 268_435_456 }),
    }),
    observed_at: ObservedAt,
    stale: Stale,
    alerts: z
      .array(Alert)
      .optional()
      .meta({ description: 'Crossed alert thresholds; only with `include=alerts`.' }),
  })
  .meta({ id: 'MetricsSummary' });

const UNITS = ['seconds', 'count', 'ratio', 'bytes'] as const;

export const MetricsSeries = z
  .strictObject({
    start: z.iso.datetime(),
    end: z.iso.datetime(),
    step_seconds: z.int().meta({ description: 'Seconds between points.', example: 60 }),
    observed_at: ObservedAt,
    stale: Stale,
    series: z.array(
      z.strictObject({
        metric: z.enum(METRIC_NAMES),
        unit: z.enum(UNITS),
        values: z.array(z.strictObject({ timestamp: z.iso.datetime(), value: z.number() })),
      }),
    ),
  })
  .meta({ id: 'MetricsSeries' });

export const MetricOfBranches = z
  .strictObject({
    start: z.iso.datetime(),
    end: z.iso.datetime(),
    step_seconds: z.int().meta({ description: 'Seconds between points.', example: 60 }),
    observed_at: ObservedAt,
    stale: Stale,
    metric: z.enum(METRIC_NAMES),
    unit: z.enum(UNITS),
    branches: z.array(
      z.strictObject({
        branch_id: z.uuid(),
        branch_name: z.string().meta({ example: 'main' }),
        values: z.array(z.strictObject({ timestamp: z.iso.datetime(), value: z.number() })),
      }),
    ),
  })
  .meta({ id: 'MetricOfBranches' });

/** Usage of a branch or a snapshot. */
const OnDisk = {
  own_bytes: Count.nullable().meta({
    description:
      'What its deletion frees. Measured again within a minute after a change. Null: the host cannot measure it.',
    example: 212_992,
  }),
  shared_bytes: Count.nullable().meta({
    description: 'What it shares with other databases. Null: the host cannot measure it.',
    example: 8_175_616,
  }),
};

const NextBranch = Count.meta({
  description: 'What the next branch that is made from it counts against the quota.',
  example: 8_388_608,
});

export const ProjectUsage = z
  .strictObject({
    project_id: z.uuid(),
    storage_used_bytes: Count.meta({
      description: 'Total size of the creating, active and expired branches.',
      example: 25_165_824,
    }),
    storage_limit_bytes: Count.meta({ description: 'The quota in bytes.', example: 268_435_456 }),
    storage_quota_gib: z.number().meta({ description: 'The quota in GiB.', example: 0.25 }),
    usage_percent: z.number().meta({ description: 'Used share of the quota, in percent.', example: 9.38 }),
    storage_state: StorageStateField,
    files_used: Count.meta({
      description:
        'Files of these branches on the database host: one to four of each table, and one of each index.',
      example: 1_240,
    }),
    files_limit: Count.meta({
      description: 'Above it, a branch that makes more is blocked, and no branch can be created.',
      example: PROJECT_FILES_MAX,
    }),
    observed_at: ObservedAt,
    stale: Stale,
    host_connected: z.boolean().meta({ description: 'Whether the database host is connected now.' }),
    disk_measured_at: z.iso.datetime().nullable().meta({
      description: 'From when `own_bytes` and `shared_bytes` are. Null: never measured.',
    }),
    branches: z.array(
      z.strictObject({
        branch_id: z.uuid(),
        branch_name: z.string().meta({ example: 'main' }),
        database: z.string().meta({ example: 'db_web_shop_prod' }),
        database_size_bytes: Count.meta({ example: 8_388_608 }),
        file_count: Count.meta({ example: 310 }),
        next_branch_bytes: NextBranch,
        ...OnDisk,
      }),
    ),
    snapshots: z.array(
      z.strictObject({
        snapshot_id: z.uuid(),
        branch_id: z.uuid(),
        size_bytes: Count.meta({ example: 8_388_608 }),
        next_branch_bytes: NextBranch,
        ...OnDisk,
      }),
    ),
    checkpoints: z
      .array(
        z.strictObject({
          checkpoint_id: z.uuid(),
          branch_id: z.uuid(),
          number: Count.nullable().meta({ example: 3 }),
          size_bytes: Count.meta({ example: 8_388_608 }),
          ...OnDisk,
        }),
      )
      .meta({
        description:
          'Their own bytes together are at most the storage quota: beyond it the oldest of the project ends.',
      }),
  })
  .meta({ id: 'ProjectUsage' });

type Branch = Pick<BranchRow, 'id' | 'branchName' | 'databaseName' | 'ownBytes' | 'sharedBytes'>;

/** The last measurement; `stale` when the host is not connected or measurements are overdue. */
export interface Measured extends Pick<Recorded, 'last' | 'sizes' | 'cloneBytes'> {
  stale: boolean;
  linked: boolean;
}

/** The cache hit ratio before the first read. */
const NO_MISS = 1;

const freshness = ({ last, stale }: Pick<Measured, 'last' | 'stale'>) => ({
  observed_at: last && new Date(last.at).toISOString(),
  stale,
});

/** @param counted the branches of the project that count against its quota */
export function metricsSummary(
  project: ProjectView,
  branch: BranchRow,
  counted: readonly Branch[],
  measured: Measured,
  withAlerts: boolean,
): z.output<typeof MetricsSummary> {
  const values: BranchValues | undefined = measured.last?.branches[branch.id];
  const limit = quotaBytes(project.storageQuotaGib);
  const used = usedBytes(measured, counted);
  const advised = values && { values, storage: used / limit, branchCount: project.branchCount };
  return {
    project_id: project.id,
    branch_id: branch.id,
    branch_name: branch.branchName,
    database: branch.databaseName,
    metrics: {
      database_size_bytes: sizeOf(measured, branch.id),
      active_connections: values?.active_connections ?? 0,
      cache_hit_ratio: values?.cache_hit_ratio ?? NO_MISS,
    },
    usage: { storageUsedBytes: used, storageLimitBytes: limit },
    ...freshness(values ? measured : { last: null, stale: true }),
    ...(withAlerts && { alerts: advised ? alertsOf(advised) : [] }),
  };
}

/** The points as one series per metric; values that were not measured are omitted. */
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
      // A point of an earlier release lacks later metrics.
      return value == null ? [] : [{ timestamp: new Date(at).toISOString(), value }];
    }),
  })),
});

/** @param branches the active branches of the project */
export const metricOfBranches = (
  { start, end, step }: Range,
  metric: MetricName,
  branches: readonly Branch[],
  measured: Measured & { values: ReadonlyMap<string, MetricValue[]> },
): z.output<typeof MetricOfBranches> => ({
  start: new Date(start).toISOString(),
  end: new Date(end).toISOString(),
  step_seconds: step / 1000,
  ...freshness(measured),
  metric,
  unit: METRICS[metric].unit,
  branches: branches.map(({ id, branchName }) => ({
    branch_id: id,
    branch_name: branchName,
    values: (measured.values.get(id) ?? []).map(({ at, value }) => ({
      timestamp: new Date(at).toISOString(),
      value,
    })),
  })),
});

const sizeOf = ({ sizes }: Pick<Measured, 'sizes'>, branchId: string) => sizes[branchId] ?? 0;

/** The total size of these branches, in bytes. */
const usedBytes = (measured: Pick<Measured, 'sizes'>, branches: readonly Branch[]): number =>
  branches.reduce((sum, { id }) => sum + sizeOf(measured, id), 0);

/** @param branches those of the project that count against its quota */
export function projectUsage(
  project: ProjectView,
  branches: readonly Branch[],
  snapshots: readonly SnapshotRow[],
  measured: Measured,
): z.output<typeof ProjectUsage> {
  const used = usedBytes(measured, branches);
  const limit = quotaBytes(project.storageQuotaGib);
  return {
    project_id: project.id,
    storage_used_bytes: used,
    storage_limit_bytes: limit,
    storage_quota_gib: project.storageQuotaGib,
    usage_percent: Number(((100 * used) / limit).toFixed(2)),
    storage_state: project.storageState,
    files_used: filesOf(
      measured.last,
      branches.map(({ id }) => id),
    ),
    files_limit: PROJECT_FILES_MAX,
    ...freshness(measured),
    host_connected: measured.linked,
    disk_measured_at: measured.last?.diskMeasuredAt ?? null,
    branches: branches.map(({ id, branchName, databaseName, ownBytes, sharedBytes }) => ({
      branch_id: id,
      branch_name: branchName,
      database: databaseName,
      database_size_bytes: sizeOf(measured, id),
      file_count: filesOf(measured.last, [id]),
      next_branch_bytes: measured.cloneBytes ?? sizeOf(measured, id),
      own_bytes: ownBytes,
      shared_bytes: sharedBytes,
    })),
    snapshots: snapshots
      .filter(({ kind }) => kind !== 'checkpoint')
      .map((row) => ({
        snapshot_id: row.id,
        branch_id: row.branchId,
        size_bytes: row.sizeBytes,
        next_branch_bytes: measured.cloneBytes ?? row.sizeBytes,
        own_bytes: row.ownBytes,
        shared_bytes: row.sharedBytes,
      })),
    checkpoints: snapshots
      .filter(({ kind }) => kind === 'checkpoint')
      .map((row) => ({
        checkpoint_id: row.id,
        branch_id: row.branchId,
        number: row.number,
        size_bytes: row.sizeBytes,
        own_bytes: row.ownBytes,
        shared_bytes: row.sharedBytes,
      })),
  };
}
