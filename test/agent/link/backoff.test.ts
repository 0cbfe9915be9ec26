import { expect, test } from 'vitest';
import type { LinkEnd } from '../../../agent/link/agent-link.ts';
import { Backoff } from '../../../agent/link/backoff.ts';

const end = (changes: Partial<LinkEnd> = {}): LinkEnd => ({
  reason: 'gone',
  linkedFor: 0,
  unwelcome: false,
  ...changes,
});

test('the wait doubles from 200 ms to 5 s', () => {
  const pace = new Backoff();
  expect(Array.from({ length: 7 }, () => pace.next(end(), 1))).toEqual([
    200, 400, 800, 1600, 3200, 5000, 5000,
  ]);
});

test('jitter takes off up to half', () => {
  expect(new Backoff().next(end(), 0)).toBe(100);
});

test('a link that lasted starts the waits anew, one that broke at once does not', () => {
  const pace = new Backoff();
  for (let i = 0; i < 2000; i += 1) pace.next(end(), 1);
  expect(pace.next(end({ linkedFor: 9_999 }), 1)).toBe(5000);
  expect(pace.next(end({ linkedFor: 10_000 }), 1)).toBe(200);
});

test('an unwelcome agent waits long', () => {
  expect(new Backoff().next(end({ unwelcome: true, linkedFor: 60_000 }), 1)).toBe(30_000);
});
