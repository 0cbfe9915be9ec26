import { expect, test } from 'vitest';
import {
  expiryOf,
  LIFESPAN_SECONDS,
  LifespanSpelling,
  lifeOf,
  TtlSeconds,
} from '../../../shared/branch/lifespan.ts';

/** Specification 2.3, word for word. */
const SPELLINGS = {
  '7d': ['7d', '7days', '7 days'],
  '1m': ['1m', '1month', '1 month'],
  '6m': ['6m', '6months', '6 months'],
  '1y': ['1y', '1year', '1 year'],
  forever: ['forever', 'permanent'],
};
const CASES = Object.entries(SPELLINGS).flatMap(([lifespan, spellings]) =>
  spellings.map((spelling) => [spelling, lifespan] as const),
);

test.each(CASES)('%s is parsed as %s, in any case', (spelling, lifespan) => {
  for (const text of [
    spelling,
    spelling.toUpperCase(),
    spelling.replace(/[a-z]/, (first) => first.toUpperCase()),
  ])
    expect(LifespanSpelling.parse(text)).toBe(lifespan);
});

test('there are 14 spellings', () => {
  expect(CASES).toHaveLength(14);
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
