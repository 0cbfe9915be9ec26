import { expect, test } from 'vitest';
import { type Advised, type AlertName, alertsOf } from '../../../edge/monitoring/alert-thresholds.ts';
import type { BranchValues } from '../../../edge/monitoring/metrics.ts';
import { NOTHING_MEASURED } from '../../support/records/sample-measurement.ts';

const names = ({ values, ...more }: { values?: Partial<BranchValues> } & Partial<Omit<Advised, 'values'>>) =>
  alertsOf({ storage: 0, branchCount: 1, ...more, values: { ...NOTHING_MEASURED, ...values } }).map(
    ({ name }) => name,
  );

const commits = (transactions_committed: number, transactions_rolled_back: number) => ({
  values: { transactions_committed, transactions_rolled_back },
});

test.each<[AlertName, still: Parameters<typeof names>[0], passed: Parameters<typeof names>[0]]>([
  ['storage', { storage: 0.899 }, { storage: 0.9 }],
  ['active_connections', { values: { active_connections: 179 } }, { values: { active_connections: 180 } }],
  ['branch_count', { branchCount: 9 }, { branchCount: 10 }],
  ['cache_hit_ratio', { values: { cache_hit_ratio: 0.9 } }, { values: { cache_hit_ratio: 0.899 } }],
  ['dead_tuple_ratio', { values: { dead_tuple_ratio: 0.2 } }, { values: { dead_tuple_ratio: 0.21 } }],
  [
    'longest_query_seconds',
    { values: { longest_query_seconds: 30 } },
    { values: { longest_query_seconds: 30.1 } },
  ],
  [
    'connection_wait_seconds',
    { values: { connection_wait_seconds: 5 } },
    { values: { connection_wait_seconds: 5.1 } },
  ],
  ['rollback_ratio', commits(100, 5), commits(100, 6)],
  ['rollback_ratio', commits(0, 0), commits(0, 1)],
])('only %s is reported when its threshold is crossed', (name, still, passed) => {
  expect(names(still)).toEqual([]);
  expect(names(passed)).toEqual([name]);
});

test('an alert has its value and its threshold', () => {
  expect(alertsOf({ values: NOTHING_MEASURED, storage: 1.2, branchCount: 10 })).toEqual([
    { name: 'storage', value: 1.2, threshold: 0.9 },
    { name: 'branch_count', value: 10, threshold: 10 },
  ]);
});
