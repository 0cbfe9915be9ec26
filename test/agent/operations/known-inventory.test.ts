import { beforeEach, describe, expect, test } from 'vitest';
import { KnownInventory } from '../../../agent/operations/inventory.ts';

let known: KnownInventory;
beforeEach(() => {
  known = new KnownInventory(300);
});

test('before the first inventory nothing is outdated by the free space', () => {
  expect(known.isOutdated(0)).toBe(false);
});

describe('after an inventory', () => {
  beforeEach(() => {
    known.beginReading();
    known.endReading(1_000);
  });

  test.each([
    [499, true],
    [500, false],
    [2_000, false],
    [2_001, true],
    [0, true],
  ])('of 1,000 free bytes, %i make it outdated: %s', (free, expected) => {
    expect(known.isOutdated(free)).toBe(expected);
  });

  test('a change makes it outdated until an inventory has begun after it', () => {
    known.beginReading();
    known.outdate();
    known.endReading(1_000);
    expect(known.isOutdated(1_000)).toBe(true);
    known.beginReading();
    known.endReading(1_000);
    expect(known.isOutdated(1_000)).toBe(false);
  });
});

test('small changes on a full disk do not count', () => {
  known.endReading(100);
  expect([0, 200, 399].map((free) => known.isOutdated(free))).toEqual([false, false, false]);
  expect(known.isOutdated(400)).toBe(true);
});

test('a full disk that was reported is not reported again', () => {
  known.endReading(0);
  expect(known.isOutdated(0)).toBe(false);
});
