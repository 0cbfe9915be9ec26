import { expect, test } from 'vitest';
import { readPastTime } from '../../cli/option-values.ts';
import { momentOf } from '../../shared/moment.ts';

test.each([
  ['2026-11-23T10:15:00Z', '2026-11-23T10:15:00.000000Z'],
  ['2026-11-23T10:15:00.5Z', '2026-11-23T10:15:00.500000Z'],
  ['2026-11-23T10:15:00.123456Z', '2026-11-23T10:15:00.123456Z'],
  ['2026-11-23T10:15:00.1234567Z', '2026-11-23T10:15:00.123456Z'],
  ['2026-11-23T01:15:00.000001+02:30', '2026-11-22T22:45:00.000001Z'],
  ['yesterday', null],
])('%s is %s', (text, moment) => {
  expect(momentOf(text)).toBe(moment);
});

test.each([
  ['10 minutes ago', 600],
  ['1 hour ago', 3_600],
  ['2h ago', 7_200],
  ['90 s ago', 90],
  ['3 days ago', 259_200],
])('%s is a time of the past', (text, seconds) => {
  const before = Date.now();
  const at = Date.parse(readPastTime(text)) + 1000 * seconds;
  expect(at).toBeGreaterThanOrEqual(before);
  expect(at).toBeLessThanOrEqual(Date.now());
});

test.each(['10 minutes', 'tomorrow', '2026-11-23T10:15:00', '10 weeks ago', ''])('%s is refused', (text) => {
  expect(() => readPastTime(text)).toThrow('10 minutes ago');
});
