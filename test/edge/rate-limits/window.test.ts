import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type Counted, countIn, isOver, type RateWindow } from '../../../edge/rate-limits/window.ts';

const MAX = 3;
const LENGTH = 60;
const limit = { max: MAX, windowMs: LENGTH };

/** Counts requests at these moments one after another. */
function countAll(moments: readonly number[]): Counted[] {
  let window: RateWindow | undefined;
  return moments.map((now) => {
    const counted = countIn(window, now, limit);
    window = counted.window;
    return counted;
  });
}

const outcomes = (moments: readonly number[]) =>
  countAll(moments).map(({ admitted, remaining }) => [admitted, remaining]);

describe('a window', () => {
  test('opens with its first request and lets its maximum through', () => {
    expect(outcomes([7, 8, 9, 10])).toEqual([
      [true, 2],
      [true, 1],
      [true, 0],
      [false, 0],
    ]);
    expect(countIn(undefined, 7, limit).window).toEqual({ endsAt: 67, count: 1 });
  });

  test('is open to its last millisecond and over at its end', () => {
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

  test('is not changed by what it refuses', () => {
    const full = { endsAt: 60, count: MAX };
    expect(countIn(full, 59, limit).window).toEqual(full);
  });

  test('a maximum that became smaller leaves nothing, never less', () => {
    expect(countIn({ endsAt: 60, count: 10 }, 30, limit)).toMatchObject({ admitted: false, remaining: 0 });
  });

  test('a clock that goes back a little forgets no count and moves no end', () => {
    expect(countIn({ endsAt: 160, count: MAX }, 110, limit)).toEqual({
      window: { endsAt: 160, count: MAX },
      admitted: false,
      remaining: 0,
    });
  });

  test('a clock that goes back an hour forgets no count, and the window ends one length from now', () => {
    const { window, admitted } = countIn({ endsAt: 3_600_060, count: MAX }, 0, limit);
    expect([window, admitted]).toEqual([{ endsAt: LENGTH, count: MAX }, false]);
    expect(countIn(window, LENGTH, limit).admitted).toBe(true);
  });
});

/**
 * The rule said another way, over a whole history at once: the first request opens a window, every request within
 * its length belongs to it, the next one opens the next; of each window the first `MAX` are let through.
 */
function admittedByHand(moments: readonly number[]): boolean[] {
  const [opening] = moments;
  if (opening === undefined) return [];
  const inside = moments.filter((moment) => moment - opening < LENGTH);
  return [...inside.keys()].map((place) => place < MAX).concat(admittedByHand(moments.slice(inside.length)));
}

const steps = (range: { min: number; max: number }) => fc.array(fc.integer(range), { maxLength: 60 });

const moments = (taken: readonly number[]) => {
  let now = 1_000_000;
  return taken.map((step) => {
    now += step;
    return now;
  });
};

describe('whatever comes', () => {
  test('it agrees with the rule done by hand', () => {
    fc.assert(
      fc.property(steps({ min: 0, max: 40 }), (taken) => {
        const history = moments(taken);
        expect(countAll(history).map(({ admitted }) => admitted)).toEqual(admittedByHand(history));
      }),
    );
  });

  test('with a clock that jumps both ways, no count is forgotten before its end and no window outlasts a length', () => {
    fc.assert(
      fc.property(steps({ min: -150, max: 150 }), (taken) => {
        const history = moments(taken);
        let before: RateWindow | undefined;
        for (const [place, { window, admitted, remaining }] of countAll(history).entries()) {
          const now = history[place] ?? 0;
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
