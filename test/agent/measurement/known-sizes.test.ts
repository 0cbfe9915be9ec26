import { expect, test } from 'vitest';
import type { Statistics } from '../../../agent/measurement/counters.ts';
import { KnownSizes } from '../../../agent/measurement/sizes.ts';

const quiet = Array.from({ length: 200 }, (_, index) => ({
  database: String(index),
  inserted: 0,
  updated: 0,
  deleted: 0,
  session_ms: 0,
  committed: 0,
})) as Statistics[];
const none: ReadonlySet<string> = new Set();

/** One round, in which every database has one byte. @returns the databases that were sized */
function size(sizes: KnownSizes, statistics: Statistics[], inTransaction = none): string[] {
  const due = sizes.due(statistics, inTransaction);
  sizes.record(statistics, new Map(due.map((database) => [database, 1])));
  return due;
}

const withFirst = (change: Partial<Statistics>) =>
  quiet.map((one, index) => (index === 7 ? { ...one, ...change } : one));

test('all are sized first, then a few per round, in turn', () => {
  const sizes = new KnownSizes();
  expect(size(sizes, quiet)).toHaveLength(200);
  const later = Array.from({ length: 100 }, () => size(sizes, quiet));
  expect(Math.max(...later.map((due) => due.length))).toBe(2);
  expect(new Set(later.flat()).size).toBe(200);
});

test.each([{ inserted: 1 }, { updated: 1 }, { deleted: 1 }, { session_ms: 0.5 }])(
  'a database with %o is sized immediately',
  (change) => {
    const sizes = new KnownSizes();
    size(sizes, quiet);
    expect(size(sizes, withFirst(change))).toContain('7');
  },
);

test('a visit of autovacuum without changes causes no sizing', () => {
  const sizes = new KnownSizes();
  size(sizes, quiet);
  expect(size(sizes, withFirst({ committed: 2 }))).not.toContain('7');
});

test('a database with an open transaction is sized in every round', () => {
  const sizes = new KnownSizes();
  size(sizes, quiet);
  for (const _ of [1, 2, 3]) expect(size(sizes, quiet, new Set(['7']))).toContain('7');
});

test('between the rounds, those that have changed or have a session are sized again, and no others', () => {
  const sizes = new KnownSizes();
  size(sizes, quiet);
  expect(sizes.changed(quiet, none)).toEqual([]);
  expect(sizes.changed(quiet, new Set(['3']))).toEqual(['3']);
  const changed = withFirst({ inserted: 1 });
  expect(sizes.changed(changed, none)).toEqual(['7']);
  sizes.add(changed, new Map([['7', 2]]));
  expect(sizes.changed(changed, none)).toEqual([]);
  expect([sizes.bytesOf('7'), sizes.bytesOf('8')]).toEqual([2, 1]);
});

test('a dropped database is forgotten', () => {
  const sizes = new KnownSizes();
  size(sizes, quiet);
  expect(sizes.bytesOf('7')).toBe(1);
  size(sizes, quiet.slice(0, 5));
  expect(sizes.bytesOf('7')).toBeUndefined();
});
