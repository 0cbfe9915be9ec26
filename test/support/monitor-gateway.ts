import { join } from 'node:path';
import { build } from 'esbuild';
import { convertV4MiniflareOptions, Miniflare } from 'miniflare';
import { applyMigrations } from '../../dev/gateway/migrations.ts';
import type { Mail } from '../../edge/mail/mail.ts';
import type { MeasurementEvent } from '../../edge/metrics/measurement-streams.ts';
import type { LastMeasurement } from '../../edge/metrics/measurements.ts';
import type { MetricHistory, Range } from '../../edge/metrics/metric-history.ts';
import type { Point } from '../../edge/metrics/metrics.ts';
import type { StorageVerdict } from '../../edge/storage-quota/storage-keeper.ts';
import type { Failure } from '../../shared/failure/failures.ts';
import type { BranchMeasurement, ProjectMeasurement } from '../../shared/metrics/measurement.ts';
import type { MonitorCall } from './monitor-worker.ts';

const root = `${join(import.meta.dirname, '../..')}/`;
const MIGRATIONS = `${root}edge/database/migrations`;

/** Of `measurements`. */
export const INTERVAL_SECONDS = 60;

/** Coordinators in real workerd with a real D1, their storage in `stateDir`. @param mail where mails are posted to */
export async function startMonitorGateway(options: { stateDir: string; mailUrl?: string }) {
  const miniflare = new Miniflare(
    convertV4MiniflareOptions({
      host: '127.0.0.1',
      port: 0,
      cf: false,
      telemetry: { enabled: false },
      resourcePersistencePath: options.stateDir,
      name: 'monitor-gateway',
      modules: true,
      script: await bundle(),
      compatibilityDate: '2026-11-01',
      d1Databases: { DB: 'branchgate' },
      durableObjects: {
        HOST_LINK: { className: 'HostLink', useSQLite: true },
        PROJECT_COORDINATOR: { className: 'TestedCoordinator', useSQLite: true },
        OUTBOX: { className: 'TestedOutbox', useSQLite: true },
        MEASUREMENTS: { className: 'TestedMeasurements', useSQLite: true },
        RATE_LIMITER: { className: 'RateLimiter', useSQLite: true },
      },
      bindings: {
        INTERVAL_SECONDS,
        IDP_URL: 'http://127.0.0.1:1',
        CREDENTIAL_KEYS: `1:${Buffer.alloc(32).toString('base64')}`,
        PLATFORM_SECRET: 'platform-secret-of-the-tests-0123456789',
        ...(options.mailUrl && {
          MAIL_API_URL: options.mailUrl,
          MAIL_API_KEY: 'key of the test',
          MAIL_FROM: 'branchgate@example.com',
          ALERT_EMAIL: 'team@example.com',
        }),
      },
    }),
  );
  const url = (await miniflare.ready).origin;
  const database = (await miniflare.getD1Database('DB')) as unknown as D1Database;
  await applyMigrations(database as never, MIGRATIONS);

  const call = async <R>(object: MonitorCall['object'], name: string, method: string, ...args: unknown[]) => {
    const body = JSON.stringify({ object, name, method, args } satisfies MonitorCall);
    const response = await fetch(url, { method: 'POST', body });
    const answer = await response.json();
    if (!response.ok) throw new Error((answer as { error: string }).error);
    return answer as R;
  };

  return {
    database,
    /** Measurements under the test's own clock. */
    measurements: (name: string) => ({
      record: (
        measured: ProjectMeasurement[],
        branches: { id: string; branchName: string }[],
        nows: number[],
      ) => call<(MeasurementEvent | null)[]>('measurements', name, 'record', measured, branches, nows),
      last: () => call<LastMeasurement | null>('measurements', name, 'last'),
      isOverdue: (now: number) => call<boolean>('measurements', name, 'isOverdue', now),
      read: (branchId: string, range: Range) => call<Point[]>('measurements', name, 'read', branchId, range),
      after: (moment: number, limit: number) =>
        call<ReturnType<MetricHistory['after']>>('measurements', name, 'after', moment, limit),
      counts: () => call<Record<string, number>>('measurements', name, 'counts'),
      rowsWritten: () => call<number>('measurements', name, 'rowsWritten'),
    }),
    /** An outbox under the test's own clock. */
    outbox: (name: string) => ({
      put: (mail: Mail, now: number) =>
        call<{ waiting: number; wokenAt: number | null }>('outbox', name, 'put', mail, now),
      send: (now: number) => call<{ waiting: number; wokenAt: number | null }>('outbox', name, 'send', now),
    }),
    coordinator: (projectId: string) => ({
      record: (measurement: ProjectMeasurement, hostId?: string) =>
        call('coordinator', projectId, 'recordMeasurement', measurement, ...(hostId ? [hostId] : [])),
      judge: () => call<StorageVerdict | null>('monitor', projectId, 'judge', projectId),
      last: () => call<{ last: LastMeasurement | null; stale: boolean }>('monitor', projectId, 'last'),
      lackFor: (branchId: string) =>
        call<Failure | null>('monitor', projectId, 'lackFor', projectId, branchId),
      reserveClones: (clones: { branchId: string; sourceId: string }[], succeeds = true) =>
        call<({ job: unknown } | { refused: Failure })[]>(
          'coordinator',
          projectId,
          'reserveClones',
          clones.map((clone) => ({ projectId, ...clone })),
          succeeds,
        ),
      wake: () => call('coordinator', projectId, 'wake', projectId),
      reset: () => call('coordinator', projectId, 'reset').catch(() => {}),
      inspect: () =>
        call<{ kept: Record<string, unknown>; alarm: number | null }>('coordinator', projectId, 'inspect'),
      stream: (
        wanted: { branchId: string | null; seconds: number; since: number | null },
        signal?: AbortSignal,
      ) =>
        fetch(`${url}/stream/${projectId}?wanted=${encodeURIComponent(JSON.stringify(wanted))}`, {
          ...(signal && { signal }),
        }),
    }),
    stop: () => miniflare.dispose(),
  };
}

export type MonitorGateway = Awaited<ReturnType<typeof startMonitorGateway>>;

const NOTHING = {
  cpu_seconds: 0,
  active_connections: 0,
  total_connections: 0,
  transactions_committed: 0,
  transactions_rolled_back: 0,
  rows_fetched: 0,
  rows_inserted: 0,
  rows_updated: 0,
  rows_deleted: 0,
  database_size_bytes: 0,
  cache_hit_ratio: null,
};

/** A measurement as a host sends it. @param branches by id, what differs from nothing */
export const measurementOf = (
  project_id: string,
  observedAt: number,
  branches: Record<string, Partial<BranchMeasurement>>,
): ProjectMeasurement => ({
  project_id,
  observed_at: new Date(observedAt).toISOString(),
  branches: Object.entries(branches).map(([branch_id, values]) => ({ ...NOTHING, branch_id, ...values })),
});

let bundled: Promise<string> | undefined;

function bundle(): Promise<string> {
  bundled ??= build({
    entryPoints: [`${root}test/support/monitor-worker.ts`],
    bundle: true,
    write: false,
    format: 'esm',
    target: 'es2023',
    conditions: ['workerd'],
    external: ['cloudflare:*'],
  }).then(({ outputFiles }) => outputFiles.map(({ text }) => text).join(''));
  return bundled;
}
