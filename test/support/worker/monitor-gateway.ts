import type { BranchRequest } from '../../../edge/branches/create-branches.ts';
import type { Mail } from '../../../edge/mail/mail.ts';
import type { LastMeasurement, MeasurementEvent } from '../../../edge/monitoring/measurements.ts';
import type { MetricHistory, Range } from '../../../edge/monitoring/metric-history.ts';
import type { Point } from '../../../edge/monitoring/metrics.ts';
import type { StorageStatus } from '../../../edge/monitoring/storage-quota.ts';
import type { ProjectBlocks } from '../../../shared/block.ts';
import { lifeOf } from '../../../shared/branch/lifespan.ts';
import type { Failure } from '../../../shared/failures.ts';
import type { ProjectMeasurement } from '../../../shared/measurement.ts';
import type { Result } from '../../../shared/result.ts';
import { migratedD1 } from '../records/d1.ts';
import { startMailServer } from '../sign-in/mail-server.ts';
import type { MonitorCall } from './monitor-worker.ts';
import { bundle, SETTINGS, startWorker } from './worker.ts';

/** Of `measurements`. */
export const INTERVAL_SECONDS = 60;

/**
 * Coordinators in real workerd with a real D1, and where they post their mails to.
 * @param more settings
 */
export async function startMonitorGateway(more: Record<string, string> = {}) {
  const mails = await startMailServer();
  const worker = startWorker(await bundle('monitor-worker'), {
    d1Databases: ['DB'],
    durableObjects: {
      HOST_LINK: { className: 'HostLink', useSQLite: true },
      PROJECT_COORDINATOR: { className: 'TestedCoordinator', useSQLite: true },
      OUTBOX: { className: 'TestedOutbox', useSQLite: true },
      MEASUREMENTS: { className: 'TestedMeasurements', useSQLite: true },
      RATE_LIMITER: { className: 'RateLimiter', useSQLite: true },
    },
    bindings: {
      ...SETTINGS,
      INTERVAL_SECONDS,
      MAIL_API_URL: mails.url,
      MAIL_API_KEY: 'key of the test',
      MAIL_FROM: 'branchgate@example.com',
      ALERT_EMAIL: 'team@example.com',
      ...more,
    },
  });
  const url = (await worker.ready).origin;
  const database = await migratedD1(worker);

  const call = async <R>(object: MonitorCall['object'], name: string, method: string, ...args: unknown[]) => {
    const body = JSON.stringify({ object, name, method, args } satisfies MonitorCall);
    const response = await fetch(url, { method: 'POST', body });
    const answer = await response.json();
    if (!response.ok) throw new Error((answer as { error: string }).error);
    return answer as R;
  };

  return {
    database,
    mails,
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
      longest: () => call<number>('measurements', name, 'longest'),
      kept: () => call<string | null>('measurements', name, 'kept'),
      loseKept: (head: string | null = null) => call<void>('measurements', name, 'loseKept', head),
      reset: () => call('measurements', name, 'reset').catch(() => {}),
      chargedRows: (
        measured: ProjectMeasurement,
        branches: { id: string; branchName: string }[],
        now: number,
      ) => call<number>('measurements', name, 'chargedRows', measured, branches, now),
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
      recordBlocks: (blocks: ProjectBlocks, hostId?: string) =>
        call('coordinator', projectId, 'recordBlocks', blocks, ...(hostId ? [hostId] : [])),
      interruptBlocks: (blocks: ProjectBlocks) => call('coordinator', projectId, 'interruptBlocks', blocks),
      remember: (measured: ProjectMeasurement[]) => call('coordinator', projectId, 'remember', measured),
      evaluate: () => call<StorageStatus | null>('monitor', projectId, 'evaluate', projectId),
      last: () => call<{ last: LastMeasurement | null; overdue: boolean }>('monitor', projectId, 'last'),
      series: (reference: string, range: Range) =>
        call<{ branchId: string; points: Point[] }>('monitor', projectId, 'series', reference, range),
      extend: (...branches: (string | { id: string; leaseSeconds: number })[]) =>
        call<Result<{ status: string }, Failure>[]>(
          'coordinator',
          projectId,
          'changeLifespans',
          branches.map((branch) => ({
            branch: {
              projectId,
              protected: false,
              lifespan: '7d',
              ...(typeof branch === 'string' ? { id: branch, leaseSeconds: null } : branch),
            },
            life: lifeOf({ lifespan: '1m' }),
            hostId: crypto.randomUUID(),
            actor: { tenantId: 'acme' },
          })),
        ),
      fileExcess: (branchId: string) =>
        call<Failure | null>('coordinator', projectId, 'fileExcess', projectId, branchId),
      reserveBranches: (requests: BranchRequest[], sizes: Record<string, number> = {}) =>
        call<Result<unknown, Failure>[]>('coordinator', projectId, 'reserveBranches', requests, sizes),
      recordSizes: (sizes: Record<string, number>, hostId?: string) =>
        call(
          'monitor',
          projectId,
          'recordSizes',
          { project_id: projectId, sizes },
          ...(hostId ? [hostId] : []),
        ),
      sendMails: (mails: Mail[], occasion?: string) =>
        call('coordinator', projectId, 'sendMails', mails, ...(occasion === undefined ? [] : [occasion])),
      wake: () => call('coordinator', projectId, 'wake'),
      ring: () => call('coordinator', projectId, 'ring'),
      reset: () => call('coordinator', projectId, 'reset').catch(() => {}),
      inspect: () =>
        call<{ kept: Record<string, unknown>; alarm: number | null }>('coordinator', projectId, 'inspect'),
      stream: (
        userId: string,
        wanted: { branchId: string | null; seconds: number; since: number | null },
        signal?: AbortSignal,
      ) =>
        fetch(
          `${url}/stream/${projectId}?user=${userId}&wanted=${encodeURIComponent(JSON.stringify(wanted))}`,
          { ...(signal && { signal }) },
        ),
    }),
    stop: async () => {
      await worker.dispose();
      await mails.stop();
    },
  };
}

export type MonitorGateway = Awaited<ReturnType<typeof startMonitorGateway>>;
