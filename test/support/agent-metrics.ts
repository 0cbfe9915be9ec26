import { type Present, registerGauges } from '../../agent/metrics/gauges.ts';
import { Metrics } from '../../agent/metrics/metrics.ts';

const MB = 2 ** 20;

/** The metrics of an agent, with values of this test. @param changed values that differ */
export function agentMetrics(
  changed: Partial<Present> = {},
  onTrouble: (name: string) => void = () => {},
): Metrics {
  const metrics = new Metrics();
  registerGauges(
    metrics.registry,
    {
      cloneMethod: 'reflink',
      isLinked: () => true,
      largestSource: () => ({ bytes: 100 * MB, extents: 1200 }),
      spares: { count: 3, taken: 40 },
      lags: { present: { following: 2, stopped: 1, lag_seconds: 0.4, slot_bytes: MB } },
      member: { lag: { lag_bytes: 2048, lag_seconds: 1.5 }, hasStandby: async () => true },
      past: async () => ({
        hours: 24,
        isBegun: true,
        from: null,
        copies: 0,
        archivedBytes: 3 * MB,
        isShortened: false,
      }),
      drills: async () => ({ failing: 1, overdue: 2 }),
      unarchived: async () => 4,
      unreadLogs: () => new Map([['pooler', 17]]),
      volumes: async () => [
        {
          names: ['data', 'wal'],
          freeBytes: 5 * MB,
          sizeBytes: 10 * MB,
          inodes: { free: 7, total: 9, floor: 1 },
        },
      ],
      poolerMemory: async () => 3 * MB,
      outdatedCollations: async () => [],
      oldestIds: async () => ({ transaction: 200_000_000, multixact: 5 }),
      certificateEnd: async () => new Date('2027-01-01T00:00:00Z'),
      ...changed,
    },
    onTrouble,
  );
  return metrics;
}
