import { beforeEach, describe, expect, test } from 'vitest';
import { ToldInventory } from '../../agent/told-inventory.ts';

let told: ToldInventory;
beforeEach(() => {
  told = new ToldInventory(300);
});

test('before the first inventory nothing is outdated by the free space', () => {
  expect(told.isOutdated(0)).toBe(false);
});

describe('after an inventory', () => {
  beforeEach(() => {
    told.beginReading();
    told.endReading(1_000);
  });

  test.each([
    [499, true],
    [500, false],
    [2_000, false],
    [2_001, true],
    [0, true],
  ])('of 1,000 free bytes, %i make it outdated: %s', (free, expected) => {
    expect(told.isOutdated(free)).toBe(expected);
  });

  test('a change makes it outdated until an inventory has begun after it', () => {
    told.beginReading();
    told.outdate();
    told.endReading(1_000);
    expect(told.isOutdated(1_000)).toBe(true);
    told.beginReading();
    told.endReading(1_000);
    expect(told.isOutdated(1_000)).toBe(false);
  });
});

test('small changes on a full disk do not count', () => {
  told.endReading(100);
  expect([0, 200, 399].map((free) => told.isOutdated(free))).toEqual([false, false, false]);
  expect(told.isOutdated(400)).toBe(true);
});

test('a full disk that was reported stays told', () => {
  told.endReading(0);
  expect(told.isOutdated(0)).toBe(false);
});
