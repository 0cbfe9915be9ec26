import { expect, test } from 'vitest';
import { LEASE_MS, Leases } from '../../../edge/rate-limits/counters.ts';

test('a place is free again when its lease ends or is released, and a renewal needs no place', () => {
  const leases = new Leases();
  expect(['a', 'b', 'c'].map((holder) => leases.hold(holder, 2, 0))).toEqual([true, true, false]);
  expect(leases.hold('a', 2, LEASE_MS - 1)).toBe(true);
  expect(leases.hold('c', 2, LEASE_MS - 1)).toBe(false);
  // The lease of `b` has ended.
  expect(leases.hold('c', 2, LEASE_MS)).toBe(true);
  expect(leases.hold('b', 2, LEASE_MS)).toBe(false);
  leases.release('a');
  expect(leases.hold('b', 2, LEASE_MS)).toBe(true);
});
