import { expect, test } from 'vitest';
import type { LinkEnd } from '../../../agent/link/agent-link.ts';
import { RedialBackoff } from '../../../agent/link/run-link.ts';

const end = (changes: Partial<LinkEnd> = {}): LinkEnd => ({
  reason: 'gone',
  linkedFor: 0,
  refused: false,
  ...changes,
});

test('the wait doubles from 200 ms to 5 s', () => {
  const redial = new RedialBackoff();
  expect(Array.from({ length: 7 }, () => redial.next(end(), 1))).toEqual([
    200, 400, 800, 1600, 3200, 5000, 5000,
  ]);
});

test('jitter shortens the wait by up to a half', () => {
  expect(new RedialBackoff().next(end(), 0)).toBe(100);
});

test('a stable link resets the wait, a link that broke soon does not', () => {
  const redial = new RedialBackoff();
  for (let i = 0; i < 2000; i += 1) redial.next(end(), 1);
  expect(redial.next(end({ linkedFor: 9_999 }), 1)).toBe(5000);
  expect(redial.next(end({ linkedFor: 10_000 }), 1)).toBe(200);
});

test('a refused agent waits longer', () => {
  expect(new RedialBackoff().next(end({ refused: true, linkedFor: 60_000 }), 1)).toBe(30_000);
});
