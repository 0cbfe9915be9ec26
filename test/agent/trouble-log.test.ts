import { beforeEach, expect, test } from 'vitest';
import { TroubleLog } from '../../agent/trouble-log.ts';

let now: number;
let lines: unknown[];
let troubles: TroubleLog;

beforeEach(() => {
  now = 0;
  lines = [];
  troubles = new TroubleLog((event, fields) => lines.push({ event, ...fields }), {
    every: 60_000,
    now: () => now,
  });
});

test('the same reason is logged once a minute', () => {
  for (now = 0; now <= 60_000; now += 1_000) troubles.report('link.down', 'refused', { at: now });
  expect(lines).toEqual([
    { event: 'link.down', reason: 'refused', at: 0 },
    { event: 'link.down', reason: 'refused', at: 60_000 },
  ]);
});

test('another reason is logged immediately', () => {
  for (const reason of ['refused', 'refused', 'timeout']) troubles.report('link.down', reason);
  expect(lines).toEqual([
    { event: 'link.down', reason: 'refused' },
    { event: 'link.down', reason: 'timeout' },
  ]);
});

test('events do not affect each other', () => {
  for (const event of ['a', 'b', 'a', 'b']) troubles.report(event, 'broken');
  expect(lines).toHaveLength(2);
});

test('a cleared trouble is logged again when it returns', () => {
  troubles.report('a', 'broken');
  troubles.report('b', 'broken');
  expect(troubles.clear('a')).toBe(true);
  expect(troubles.clear('a')).toBe(false);
  troubles.report('a', 'broken');
  expect(lines).toHaveLength(3);
  expect(troubles.clear()).toBe(true);
  expect(troubles.clear()).toBe(false);
});
