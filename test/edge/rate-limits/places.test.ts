import { expect, test } from 'vitest';
import { HOLD_MS, Places } from '../../../edge/rate-limits/counters.ts';

test('a place is free again when its lease ends or is released, and a renewal needs no place', () => {
  const places = new Places();
  expect(['a', 'b', 'c'].map((holder) => places.hold(holder, 2, 0))).toEqual([true, true, false]);
  expect(places.hold('a', 2, HOLD_MS - 1)).toBe(true);
  expect(places.hold('c', 2, HOLD_MS - 1)).toBe(false);
  // The lease of `b` has ended.
  expect(places.hold('c', 2, HOLD_MS)).toBe(true);
  expect(places.hold('b', 2, HOLD_MS)).toBe(false);
  places.release('a');
  expect(places.hold('b', 2, HOLD_MS)).toBe(true);
});
