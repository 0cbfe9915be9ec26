import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { Slots } from '../../../agent/rows/slots.ts';

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

const settle = () => vi.advanceTimersByTimeAsync(0);

/** Enters so many times; what came in, and how the others were turned away. */
function crowd(places: Slots, branchId: string, count: number) {
  const inside: (() => void)[] = [];
  const turnedAway: string[] = [];
  for (let n = 0; n < count; n += 1) {
    places.enter(branchId).then(
      (leave) => inside.push(leave),
      ({ code }) => turnedAway.push(code),
    );
  }
  return { inside, turnedAway };
}

test('a branch has four places and four that wait; who leaves lets the next one in', async () => {
  const places = new Slots();
  const { inside, turnedAway } = crowd(places, 'one', 10);
  await settle();
  expect([inside.length, turnedAway]).toEqual([4, ['HOST_BUSY', 'HOST_BUSY']]);
  inside[0]?.();
  await settle();
  expect(inside).toHaveLength(5);
  for (const leave of inside.slice(1)) leave();
  await settle();
  expect(inside).toHaveLength(8);
  for (const leave of inside.slice(5)) leave();
  expect((await Promise.all(Array.from({ length: 4 }, () => places.enter('one')))).length).toBe(4);
});

test('who waits for two seconds is turned away and takes up no place', async () => {
  const places = new Slots();
  const { inside, turnedAway } = crowd(places, 'one', 8);
  await vi.advanceTimersByTimeAsync(2_000);
  expect([inside.length, turnedAway]).toEqual([4, Array(4).fill('HOST_BUSY')]);
  for (const leave of inside) leave();
  const again = crowd(places, 'one', 8);
  await settle();
  expect([again.inside.length, again.turnedAway]).toEqual([4, []]);
});

test('who would not wait is turned away at once when no place is free', async () => {
  const places = new Slots();
  const { inside } = crowd(places, 'one', 4);
  await settle();
  await expect(places.enter('one', false)).rejects.toMatchObject({ code: 'HOST_BUSY' });
  inside[0]?.();
  await places.enter('one', false);
});

test('a full branch keeps no other out; all together have sixteen places', async () => {
  const places = new Slots();
  const first = crowd(places, 'one', 8);
  const others = ['two', 'three', 'four', 'five'].map((name) => crowd(places, name, 4));
  await settle();
  expect([first, ...others].map(({ inside }) => inside.length)).toEqual([4, 4, 4, 4, 0]);
  // The first that wait can't use the place that another branch leaves; the one behind them can.
  others[0]?.inside[0]?.();
  await settle();
  expect([first, ...others].map(({ inside }) => inside.length)).toEqual([4, 4, 4, 4, 1]);
});
