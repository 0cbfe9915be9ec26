import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  evaluateStorage,
  inGib,
  quotaBytes,
  STORAGE_STATES,
  type StorageState,
} from '../../../shared/project/storage-quota.ts';

const QUOTA = 1000;
const state = fc.constantFrom(...STORAGE_STATES);
const bytes = fc.integer({ min: 0, max: 2 ** 43 });
const quota = fc.integer({ min: 1, max: 2 ** 43 });
const rank = (of: StorageState) => STORAGE_STATES.indexOf(of);

describe('evaluateStorage', () => {
  test.each<[used: number, normal: StorageState, warning: StorageState, writeBlocked: StorageState]>([
    [0, 'normal', 'normal', 'normal'],
    [799, 'normal', 'normal', 'normal'],
    [800, 'normal', 'warning', 'warning'],
    [801, 'warning', 'warning', 'warning'],
    [999, 'warning', 'warning', 'warning'],
    [1000, 'write_blocked', 'write_blocked', 'write_blocked'],
    [5000, 'write_blocked', 'write_blocked', 'write_blocked'],
  ])('%d of 1000 bytes: from normal %s, from warning %s, from write_blocked %s', (used, ...expected) => {
    expect(STORAGE_STATES.map((before) => evaluateStorage(before, used, QUOTA))).toEqual(expected);
  });

  test('is idempotent: the same usage never changes the state again', () => {
    fc.assert(
      fc.property(state, bytes, quota, (before, used, limit) => {
        const after = evaluateStorage(before, used, limit);
        expect(evaluateStorage(after, used, limit)).toBe(after);
      }),
    );
  });

  test('never falls when usage rises, and never rises when the quota rises', () => {
    fc.assert(
      fc.property(state, bytes, bytes, quota, quota, (before, one, other, small, large) => {
        const [less, more] = [Math.min(one, other), Math.max(one, other)];
        const [tight, wide] = [Math.min(small, large), Math.max(small, large)];
        expect(rank(evaluateStorage(before, less, tight))).toBeLessThanOrEqual(
          rank(evaluateStorage(before, more, tight)),
        );
        expect(rank(evaluateStorage(before, one, wide))).toBeLessThanOrEqual(
          rank(evaluateStorage(before, one, tight)),
        );
      }),
    );
  });

  test('a state is left for a lower one only below its threshold', () => {
    const THRESHOLD: Record<StorageState, number> = { normal: 0, warning: 80, write_blocked: 100 };
    fc.assert(
      fc.property(state, bytes, quota, (before, used, limit) => {
        const after = evaluateStorage(before, used, limit);
        if (rank(after) < rank(before)) expect(used * 100).toBeLessThan(limit * THRESHOLD[before]);
      }),
    );
  });
});

test('a quota is whole bytes and at least one', () => {
  expect(quotaBytes(0.25)).toBe(268_435_456);
  expect(quotaBytes(0.1)).toBe(107_374_183);
  expect(quotaBytes(1e-12)).toBe(1);
});

test('bytes are converted to GiB', () => {
  expect(inGib(268_435_456)).toBe(0.25);
  expect(inGib(1024)).toBe(0.000001);
});
