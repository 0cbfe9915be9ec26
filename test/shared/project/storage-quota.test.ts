import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  ceilingBytes,
  evaluateStorage,
  inGib,
  quotaBytes,
  STORAGE_STATES,
  type StorageState,
} from '../../../shared/project/storage-quota.ts';

const MIB = 2 ** 20;
const state = fc.constantFrom(...STORAGE_STATES);
const bytes = fc.integer({ min: 0, max: 2 ** 43 });
const quota = fc.integer({ min: 1, max: 2 ** 43 });
const rank = (of: StorageState) => STORAGE_STATES.indexOf(of);

describe('evaluateStorage', () => {
  /** Used MiB of 1000, and the resulting state by the state before. */
  type Row = [
    used: number,
    normal: StorageState,
    warning: StorageState,
    blocked: StorageState,
    closed: StorageState,
  ];
  test.each<Row>([
    [0, 'normal', 'normal', 'normal', 'normal'],
    [799, 'normal', 'normal', 'normal', 'normal'],
    [800, 'normal', 'warning', 'warning', 'warning'],
    [801, 'warning', 'warning', 'warning', 'warning'],
    [999, 'warning', 'warning', 'warning', 'warning'],
    [1000, 'write_blocked', 'write_blocked', 'write_blocked', 'write_blocked'],
    [2000, 'write_blocked', 'write_blocked', 'write_blocked', 'closed'],
    [2001, 'closed', 'closed', 'closed', 'closed'],
  ])('%d of 1000 MiB: from normal %s, warning %s, write_blocked %s, closed %s', (used, ...expected) => {
    const states = STORAGE_STATES.map((before) => evaluateStorage(before, used * MIB, 1000 * MIB));
    expect(states).toEqual(expected);
  });

  test('the empty databases of a tiny quota leave the owner login open', () => {
    expect(evaluateStorage('normal', 32 * MIB, MIB)).toBe('write_blocked');
    expect(evaluateStorage('normal', 34 * MIB, MIB)).toBe('closed');
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
        const less = Math.min(one, other);
        const more = Math.max(one, other);
        const tight = Math.min(small, large);
        const wide = Math.max(small, large);
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
    const threshold: Record<StorageState, (limit: number) => number> = {
      normal: () => 0,
      warning: (limit) => limit * 80,
      write_blocked: (limit) => limit * 100,
      closed: (limit) => ceilingBytes(limit) * 100,
    };
    fc.assert(
      fc.property(state, bytes, quota, (before, used, limit) => {
        const after = evaluateStorage(before, used, limit);
        if (rank(after) < rank(before)) expect(used * 100).toBeLessThan(threshold[before](limit));
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
