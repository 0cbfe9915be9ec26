import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type Counted, countIn, isOver, type RateWindow } from '../../../edge/rate-limits/counters.ts';

const MAX = 3;
const LENGTH = 60;
const limit = { max: MAX, windowMs: LENGTH };

/** Counts requests at these times, one after another. */
function countAll(times: readonly number[]): Counted[] {
  let window: RateWindow | undefined;
  return times.map((now) => {
    const counted = countIn(window, now, limit);
    window = counted.window;
    return counted;
  });
}

const outcomes = (times: readonly number[]) =>
  countAll(times).map(({ admitted, remaining }) => [admitted, remaining]);

describe('a window', () => {
  test('starts with its first request and admits its maximum', () => {
    expect(outcomes([7, 8, 9, 10])).toEqual([
      [true, 2],
      [true, 1],
      [true, 0],
      [false, 0],
    ]);
    expect(countIn(undefined, 7, limit).window).toEqual({ endsAt: 67, count: 1 });
  });

  test('is open until its last millisecond and over at its end', () => {
    expect(outcomes([0, 0, 0, 59, 60])).toEqual([
      [true, 2],
      [true, 1],
      [true, 0],
      [false, 0],
      [true, 2],
    ]);
    const { window } = countIn(undefined, 0, limit);
    expect([isOver(window, 59), isOver(window, 60)]).toEqual([false, true]);
  });

  test('is not changed by denied requests', () => {
    const full = { endsAt: 60, count: MAX };
    expect(countIn(full, 59, limit).window).toEqual(full);
  });

  test('a reduced maximum leaves zero, never a negative count', () => {
    expect(countIn({ endsAt: 60, count: 10 }, 30, limit)).toMatchObject({ admitted: false, remaining: 0 });
  });

  test('a clock set back a little loses no count and moves no end', () => {
    expect(countIn({ endsAt: 160, count: MAX }, 110, limit)).toEqual({
      window: { endsAt: 160, count: MAX },
      admitted: false,
      remaining: 0,
    });
  });

  test('a clock set back by an hour loses no count, and the window ends one length from now', () => {
    const { window, admitted } = countIn({ endsAt: 3_600_060, count: MAX }, 0, limit);
    expect([window, admitted]).toEqual([{ endsAt: LENGTH, count: MAX }, false]);
    expect(countIn(window, LENGTH, limit).admitted).toBe(true);
  });
});

/**
 * A reference implementation over a whole history: the first request starts a window, every request within
 * its length belongs to it, and the next one starts another; the first `MAX` requests of each window are
 * admitted.
 */
function admittedByHand(times: readonly number[]): boolean[] {
  const [opening] = times;
  if (opening === undefined) return [];
  const inside = times.filter((time) => time - opening < LENGTH);
  return [...inside.keys()].map((index) => index < MAX).concat(admittedByHand(times.slice(inside.length)));
}

const steps = (range: { min: number; max: number }) => fc.array(fc.integer(range), { maxLength: 60 });

const times = (offsets: readonly number[]) => {
  let now = 1_000_000;
  return offsets.map((step) => {
    now += step;
    return now;
  });
};

describe('for any history', () => {
  test('it agrees with the reference implementation', () => {
    fc.assert(
      fc.property(steps({ min: 0, max: 40 }), (offsets) => {
        const history = times(offsets);
        expect(countAll(history).map(({ admitted }) => admitted)).toEqual(admittedByHand(history));
      }),
    );
  });

  test('with a clock that jumps both ways, no count is lost before its end and no window exceeds its length', () => {
    fc.assert(
      fc.property(steps({ min: -150, max: 150 }), (offsets) => {
        const history = times(offsets);
        let before: RateWindow | undefined;
        for (const [index, { window, admitted, remaining }] of countAll(history).entries()) {
          const now = history[index] ?? 0;
          const used = before && now < before.endsAt ? before.count : 0;
          expect(admitted).toBe(used < MAX);
          expect(remaining).toBe(MAX - used - (admitted ? 1 : 0));
          expect(window.endsAt - now).toBeGreaterThan(0);
          expect(window.endsAt - now).toBeLessThanOrEqual(LENGTH);
          if (used > 0) expect(window.endsAt).toBeLessThanOrEqual(before?.endsAt ?? 0);
          before = window;
        }
      }),
    );
  });
});
