import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { Slots } from '../../../agent/rows/slots.ts';

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

const settle = () => vi.advanceTimersByTimeAsync(0);

/** Calls `enter` that many times; collects the functions that leave, and the codes of the refusals. */
function crowd(slots: Slots, branchId: string, count: number) {
  const inside: (() => void)[] = [];
  const refused: string[] = [];
  for (let n = 0; n < count; n += 1) {
    slots.enter(branchId).then(
      (leave) => inside.push(leave),
      ({ code }) => refused.push(code),
    );
  }
  return { inside, refused };
}

test('a branch has four slots and four waiting operations; one that leaves admits the next', async () => {
  const slots = new Slots();
  const { inside, refused } = crowd(slots, 'one', 10);
  await settle();
  expect([inside.length, refused]).toEqual([4, ['HOST_BUSY', 'HOST_BUSY']]);
  inside[0]?.();
  await settle();
  expect(inside).toHaveLength(5);
  for (const leave of inside.slice(1)) leave();
  await settle();
  expect(inside).toHaveLength(8);
  for (const leave of inside.slice(5)) leave();
  expect((await Promise.all(Array.from({ length: 4 }, () => slots.enter('one')))).length).toBe(4);
});

test('an operation that has waited for two seconds is refused and occupies no slot', async () => {
  const slots = new Slots();
  const { inside, refused } = crowd(slots, 'one', 8);
  await vi.advanceTimersByTimeAsync(2_000);
  expect([inside.length, refused]).toEqual([4, Array(4).fill('HOST_BUSY')]);
  for (const leave of inside) leave();
  const again = crowd(slots, 'one', 8);
  await settle();
  expect([again.inside.length, again.refused]).toEqual([4, []]);
});

test('a full branch leaves slots to the others; all branches together have sixteen', async () => {
  const slots = new Slots();
  const first = crowd(slots, 'one', 8);
  const others = ['two', 'three', 'four', 'five'].map((name) => crowd(slots, name, 4));
  await settle();
  expect([first, ...others].map(({ inside }) => inside.length)).toEqual([4, 4, 4, 4, 0]);
  // The first branch is at its own limit, so the free slot goes to the branch that waits behind it.
  others[0]?.inside[0]?.();
  await settle();
  expect([first, ...others].map(({ inside }) => inside.length)).toEqual([4, 4, 4, 4, 1]);
});
