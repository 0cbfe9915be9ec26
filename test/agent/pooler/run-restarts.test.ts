import { expect, test } from 'vitest';
import { isDue } from '../../../agent/pooler/restart.ts';

const MB = 2 ** 20;
const ENDED_AT = Date.parse('2026-11-23T00:00:00Z');
const HOUR = 3_600_000;
const last = { phase: 'none', since: new Date(ENDED_AT).toISOString(), failure: null } as const;

test.each([
  ['below the limit', 191 * MB, 192, 25 * HOUR, false],
  ['at the limit', 192 * MB, 192, 25 * HOUR, true],
  ['on the day of the last restart, which did not help', 192 * MB, 192, 23 * HOUR, false],
  ['without a limit', 4096 * MB, 0, 25 * HOUR, false],
])('a restart is due: %s', (_, bytes, limitMb, later, due) => {
  expect(isDue(bytes, limitMb, last, ENDED_AT + later)).toBe(due);
});
