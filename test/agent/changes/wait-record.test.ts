import { expect, test } from 'vitest';
import { BUCKETS, bucketOf, type Holder, longestOf, WaitRecord } from '../../../agent/changes/wait-record.ts';

const EVERY = 1_000;

/** Samples once a second. Each letter of a word is a transaction that holds the table then, `.` for none. */
function waitsOf(samples: readonly string[], ages: Record<string, number> = {}) {
  const record = new WaitRecord();
  return samples.flatMap((holders, n) => {
    const seen = new Map<string, Holder>(
      [...holders.replace('.', '')].map((name) => [name, { name, age: ages[name] ?? 60_000 }]),
    );
    const at = (n + 1) * EVERY;
    return record
      .add(seen, { at, last: n * EVERY, every: EVERY })
      .map((wait) => `${wait.at / EVERY}: ${wait.ms / EVERY} behind ${wait.behind}`);
  });
}

test('each moment waits for all who held the table then, and for nobody who came later', () => {
  expect(waitsOf(['.', 'a', 'a', 'a', '.'])).toEqual([
    '2: 2.5 behind a',
    '3: 1.5 behind a',
    '4: 0.5 behind a',
  ]);
  // From 3 on, b is there too, and ends after a.
  expect(waitsOf(['a', 'a', 'ab', 'b', 'b', '.'])).toEqual([
    '1: 2.5 behind a',
    '2: 1.5 behind a',
    '3: 2.5 behind b',
    '4: 1.5 behind b',
    '5: 0.5 behind b',
  ]);
  // One that ends earlier decides nothing.
  expect(waitsOf(['a', 'ab', 'a', '.'])).toEqual(['1: 2.5 behind a', '2: 1.5 behind a', '3: 0.5 behind a']);
});

test('a transaction that is seen once has lasted as long before the sample as after it', () => {
  expect(waitsOf(['a', '.'], { a: 20 })).toEqual(['1: 0.02 behind a']);
  expect(waitsOf(['a', 'b', '.'], { a: 20, b: 900 })).toEqual(['1: 0.02 behind a', '2: 0.5 behind b']);
});

test('a bucket has the waits up to its longest', () => {
  for (const ms of [0, 1, 10, 11, 13, 14, 999, 41_000, 3_600_000]) {
    const bucket = bucketOf(ms);
    expect(longestOf(bucket) + 1).toBeGreaterThanOrEqual(ms);
    if (bucket > 0) expect(longestOf(bucket - 1)).toBeLessThanOrEqual(ms);
  }
  expect(bucketOf(1e12)).toBe(BUCKETS - 1);
});
