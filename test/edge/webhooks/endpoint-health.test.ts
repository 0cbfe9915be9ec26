import { expect, test } from 'vitest';
import { afterFailure, HEALTHY, isHopeless, isProbed, retryAfter } from '../../../edge/webhooks/delivery.ts';

const HOUR = 3_600_000;
const DAY = 24 * HOUR;

test('the delays of a delivery double from 5 seconds to an hour', () => {
  const delays = Array.from({ length: 12 }, (_, n) => retryAfter(n + 1, 1) / 1000);
  expect(delays).toEqual([5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]);
  expect(retryAfter(1, 0)).toBe(2500);
});

test('an endpoint that keeps failing gets one delivery at a time, with growing pauses', () => {
  let health = HEALTHY;
  const pauses = Array.from({ length: 6 }, () => {
    health = afterFailure(health, 1000, 1);
    return [isProbed(health), (health.pausedUntil - 1000) / 1000];
  });
  expect(pauses).toEqual([
    [false, 0],
    [false, 0],
    [true, 5],
    [true, 10],
    [true, 20],
    [true, 40],
  ]);
});

test('three days of failures are hopeless, counted from the first', () => {
  const later = afterFailure(afterFailure(HEALTHY, 0, 1), 2 * DAY, 1);
  expect(isHopeless(HEALTHY, 4 * DAY)).toBe(false);
  expect(isHopeless(later, 3 * DAY - 1)).toBe(false);
  expect(isHopeless(later, 3 * DAY)).toBe(true);
});
