import { expect, test } from 'vitest';
import {
  expiryOf,
  LIFESPAN_SECONDS,
  LifespanSpelling,
  lifeOf,
  TtlSeconds,
} from '../../../shared/branch/lifespan.ts';

test.each([
  ['7d', '7d'],
  ['7Days', '7d'],
  ['7 days', '7d'],
  ['1 MONTH', '1m'],
  ['1month', '1m'],
  ['6 months', '6m'],
  ['1year', '1y'],
  ['Permanent', 'forever'],
])('%s is parsed as %s (specification 2.3)', (spelling, lifespan) => {
  expect(LifespanSpelling.parse(spelling)).toBe(lifespan);
});

test.each(['', '8d', '7', ' 7d', 'constructor', '__proto__'])('%j is rejected', (spelling) => {
  expect(LifespanSpelling.safeParse(spelling).success).toBe(false);
});

test('lifespans have the durations of specification 2.3', () => {
  expect(LIFESPAN_SECONDS).toEqual({
    '7d': 604_800,
    '1m': 2_592_000,
    '6m': 15_811_200,
    '1y': 31_536_000,
    forever: null,
  });
  expect(expiryOf(lifeOf({}), new Date(0))).toEqual(new Date(604_800_000));
  expect(expiryOf(lifeOf({ lifespan: 'forever' }), new Date(0))).toBeNull();
});

test('a life in seconds is recorded as custom', () => {
  const life = lifeOf({ ttl_seconds: 7200 });
  expect(life).toEqual({ lifespan: 'custom', ttlSeconds: 7200 });
  expect(expiryOf(life, new Date(0))).toEqual(new Date(7_200_000));
  expect(LifespanSpelling.safeParse('custom').success).toBe(false);
  for (const [seconds, isValid] of [
    [59, false],
    [60, true],
    [31_536_000, true],
    [31_536_001, false],
  ] as const)
    expect(TtlSeconds.safeParse(seconds).success).toBe(isValid);
});
