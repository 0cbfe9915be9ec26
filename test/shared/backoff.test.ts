import { expect, test } from 'vitest';
import { backoff } from '../../shared/backoff.ts';

const LIMITS = { first: 200, longest: 5_000 };

test('doubles up to the longest wait', () => {
  const waits = [0, 1, 2, 3, 4, 5, 2_000].map((attempt) => backoff(attempt, LIMITS));
  expect(waits).toEqual([200, 400, 800, 1600, 3200, 5000, 5000]);
});

test.each([
  [0, 100],
  [0.5, 150],
  [1, 200],
])('jitter %f shortens the first wait to %i ms', (random, wait) => {
  expect(backoff(0, { ...LIMITS, random })).toBe(wait);
});
