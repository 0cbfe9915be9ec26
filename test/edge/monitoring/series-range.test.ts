import fc from 'fast-check';
import { expect, test } from 'vitest';
import { rangeOf } from '../../../edge/monitoring/metrics-resource.ts';

const NOW = Date.UTC(2026, 5, 15, 12);
const HOUR = 3_600_000;
const DAY = 24 * HOUR;
const MINUTE = 60_000;

test.each<[string, Parameters<typeof rangeOf>[0], object]>([
  ['nothing: the last hour by minutes', {}, { start: NOW - HOUR, end: NOW, step: MINUTE }],
  ['a start within a day', { start: NOW - DAY }, { start: NOW - DAY, step: MINUTE }],
  ['a start within 30 days: hours', { start: NOW - DAY - 1 }, { step: HOUR }],
  ['a start before that: days', { start: NOW - 30 * DAY - 1 }, { step: DAY }],
  ['a step shorter than is kept', { start: NOW - 2 * DAY, step: 60 }, { step: HOUR }],
  ['a longer step', { step: 420 }, { step: 7 * MINUTE }],
  ['an end in the future', { end: NOW + DAY }, { start: NOW - HOUR, end: NOW }],
  ['one moment', { start: NOW, end: NOW }, { start: NOW, end: NOW }],
  ['a start after the end', { start: NOW - HOUR, end: NOW - DAY }, { path: 'start' }],
  ['too long a time', { start: NOW - 1501 * DAY }, { path: 'step' }],
])('%s', (_, query, expected) => {
  expect(rangeOf(query, NOW)).toMatchObject(expected);
});

test('any range is bounded and not in the future', () => {
  const moment = fc.option(fc.integer({ min: 0, max: NOW + 10 * DAY }), { nil: undefined });
  const step = fc.option(fc.integer({ min: 60, max: 30 * 86_400 }), { nil: undefined });
  fc.assert(
    fc.property(moment, moment, step, (start, end, seconds) => {
      const range = rangeOf({ start, end, step: seconds }, NOW);
      if ('message' in range) return;
      expect(range.start).toBeLessThanOrEqual(range.end);
      expect(range.end).toBeLessThanOrEqual(NOW);
      expect((range.end - range.start) / range.step).toBeLessThan(1500);
    }),
  );
});
