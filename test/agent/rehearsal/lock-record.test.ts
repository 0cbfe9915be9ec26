import { expect, test } from 'vitest';
import {
  LockRecord,
  type LockSummary,
  locksByRelation,
  NO_SAMPLES,
} from '../../../agent/rehearsal/lock-record.ts';

const locksOf = (summary: LockSummary, relation: string) =>
  locksByRelation(summary)
    .get(relation)
    ?.map(({ mode, longest_ms }) => ({ mode, longest_ms }));

const held = (...locks: string[]) =>
  locks.map((lock) => {
    const [relation = '', mode = ''] = lock.split(' ');
    return { relation, mode };
  });

test('a lock lasts from the first sample that shows it to the first that does not', () => {
  const record = new LockRecord(NO_SAMPLES);
  record.add(1000, []);
  record.add(1050, held('1 AccessExclusiveLock', '2 ShareLock'));
  record.add(1100, held('1 AccessExclusiveLock'));
  record.add(1150, []);
  record.add(1200, held('1 AccessExclusiveLock'));
  record.add(1250, []);
  expect(locksOf(record.summary, '1')).toEqual([{ mode: 'AccessExclusiveLock', longest_ms: 100 }]);
  expect(locksOf(record.summary, '2')).toEqual([{ mode: 'ShareLock', longest_ms: 50 }]);
});

test('a lock that is still held counts, and the modes of a table are in the order of their times', () => {
  const record = new LockRecord(NO_SAMPLES);
  record.add(0, held('11 ShareLock', '1 ShareLock'));
  record.add(100, held('11 ShareLock', '1 ShareLock', '1 AccessExclusiveLock'));
  record.add(400, held('11 ShareLock', '1 AccessExclusiveLock'));
  expect(locksOf(record.summary, '1')).toEqual([
    { mode: 'ShareLock', longest_ms: 400 },
    { mode: 'AccessExclusiveLock', longest_ms: 300 },
  ]);
});

test('a restarted agent goes on with what is stored, and the gap is reported', () => {
  const first = new LockRecord(NO_SAMPLES);
  first.add(0, held('1 ShareLock'));
  first.add(50, []);
  const second = new LockRecord(JSON.parse(JSON.stringify(first.summary)));
  second.add(4_050, held('1 ShareLock'));
  second.add(4_070, []);
  expect(locksOf(second.summary, '1')).toEqual([{ mode: 'ShareLock', longest_ms: 50 }]);
  expect(second.summary).toMatchObject({ samples: 4, longest_gap_ms: 4_000 });
});
