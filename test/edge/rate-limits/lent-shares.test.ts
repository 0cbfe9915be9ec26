import { describe, expect, test } from 'vitest';
import { LentShares } from '../../../edge/rate-limits/counters.ts';
import { BorrowedShares, SHARE_MS, type WindowState } from '../../../edge/rate-limits/limiter-client.ts';
import { LIMITS, type LimitTable } from '../../../edge/rate-limits/limits.ts';

const wants = (id: string, count = 1000) => ({ id, count, returned: null });

test('only counts of requests are lent, never those that limit guesses', () => {
  const lent = Object.entries(LIMITS as LimitTable).filter(([, limit]) => limit.lent);
  expect(lent.map(([name]) => name)).toEqual(['reads', 'writes', 'machine_reads', 'machine_writes', 'sql']);
  for (const [, limit] of lent) expect(limit).toMatchObject({ written: 'within_a_second' });
});

describe('what is lent', () => {
  test('is at most 3 % of the limit for all isolates together', () => {
    const shares = new LentShares();
    expect(shares.lend(wants('a', 20), 1000, 900)).toBe(20);
    expect(shares.lend(wants('b', 20), 1000, 880)).toBe(10);
    expect(shares.lend(wants('c', 20), 1000, 870)).toBe(0);
    expect(shares.settle({ id: 'a', count: 5 })).toBe(5);
    expect(shares.lend(wants('d'), 1000, 870)).toBe(20);
  });

  test('is at most a sixteenth of what remains, and nothing at the end or of a small limit', () => {
    expect(new LentShares().lend(wants('a'), 1000, 160)).toBe(10);
    expect(new LentShares().lend(wants('a'), 1000, 15)).toBe(0);
    expect(new LentShares().lend(wants('a'), 33, 33)).toBe(0);
  });

  test('is returned once, and never more than was lent', () => {
    const shares = new LentShares();
    shares.lend(wants('a', 4), 1000, 900);
    expect(shares.settle({ id: 'a', count: 400 })).toBe(4);
    expect(shares.settle({ id: 'a', count: 4 })).toBe(0);
    expect(shares.settle({ id: 'of another window', count: 4 })).toBe(0);
  });
});

describe('what an isolate has borrowed', () => {
  const KEY = 'reads of a project';
  const window = (lent: number): WindowState => ({
    admitted: true,
    limit: 1000,
    remaining: 900,
    endsAt: 60_000,
    restMs: 50_000,
    lent,
  });

  function borrowing(lent: number, at = 10_000) {
    const shares = new BorrowedShares(10);
    const wanted = shares.wanted(KEY, at);
    if (!wanted) throw new Error('nothing is wanted');
    shares.borrow(KEY, wanted, window(lent), at);
    return { shares, id: wanted.id };
  }

  test('is used until it is used up, and counts down', () => {
    const { shares } = borrowing(2);
    expect(shares.use(KEY, 10_100)).toMatchObject({ remaining: 899, restMs: 49_900 });
    expect(shares.use(KEY, 10_200)).toMatchObject({ remaining: 898, restMs: 49_800 });
    expect(shares.use(KEY, 10_200)).toBeNull();
  });

  test('takes a request back', () => {
    const { shares, id } = borrowing(2);
    shares.use(KEY, 10_100);
    expect(shares.putBack(KEY)).toBe(true);
    expect(shares.use(KEY, 10_100)).toMatchObject({ remaining: 899 });
    shares.takeBack(KEY, id);
    expect(shares.putBack(KEY)).toBe(false);
  });

  test('is not used after the end of the window, or when the clock was set back', () => {
    expect(borrowing(2).shares.use(KEY, 60_000)).toBeNull();
    expect(borrowing(2).shares.use(KEY, 9_999)).toBeNull();
  });

  test('grows with the rate of the client, from nothing', () => {
    const { shares } = borrowing(0);
    expect(shares.use(KEY, 10_100)).toBeNull();
    const second = shares.wanted(KEY, 10_100);
    expect(second).toMatchObject({ count: 2, returned: null });
    if (second) shares.borrow(KEY, second, window(2), 10_100);
    for (let n = 0; n < 3; n++) shares.use(KEY, 10_200);
    // It is used up, so that the object can lend it again.
    expect(shares.wanted(KEY, 10_200)).toMatchObject({ count: 6, returned: { id: second?.id, count: 0 } });
  });

  test('is asked for by one request at a time, and by the next one if that gets no response', () => {
    const shares = new BorrowedShares(10);
    expect(shares.wanted(KEY, 10_000)).toMatchObject({ count: 0 });
    expect(shares.wanted(KEY, 10_001)).toBeNull();
    expect(shares.wanted(KEY, 10_000 + SHARE_MS)).toMatchObject({ count: 0 });
  });

  test('is returned once, with the next call or by itself', () => {
    const { shares, id } = borrowing(3);
    shares.use(KEY, 10_100);
    expect(shares.takeBack(KEY, 'another')).toBeNull();
    expect(shares.takeBack(KEY, id)).toEqual({ id, count: 2 });
    expect(shares.takeBack(KEY, id)).toBeNull();
    expect(shares.use(KEY, 10_100)).toBeNull();
    const { shares: others, id: other } = borrowing(3);
    expect(others.wanted(KEY, 10_100)?.returned).toEqual({ id: other, count: 3 });
    expect(others.use(KEY, 10_100)).toBeNull();
  });
});
