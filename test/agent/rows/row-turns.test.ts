import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { RowTurns } from '../../../agent/rows/row-turns.ts';

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

const settle = () => vi.advanceTimersByTimeAsync(0);

/**
 * Calls `enter` that many times; collects the functions that leave, and the codes of the refusals.
 * @param branch named `project/branch`; the project's `main` without the second part
 */
function crowd(turns: RowTurns, branch: string, count: number) {
  const [project = ''] = branch.split('/');
  const inside: (() => void)[] = [];
  const refused: string[] = [];
  for (let n = 0; n < count; n += 1) {
    turns.enter(branch, project).then(
      (leave) => inside.push(leave),
      ({ code }) => refused.push(code),
    );
  }
  return { inside, refused };
}

test('a branch has four turns and four waiting operations; one that leaves admits the next', async () => {
  const turns = new RowTurns();
  const { inside, refused } = crowd(turns, 'shop', 10);
  await settle();
  expect([inside.length, refused]).toEqual([4, ['PROJECT_BUSY', 'PROJECT_BUSY']]);
  inside[0]?.();
  await settle();
  expect(inside).toHaveLength(5);
  for (const leave of inside.slice(1)) leave();
  await settle();
  expect(inside).toHaveLength(8);
  for (const leave of inside.slice(5)) leave();
  const again = crowd(turns, 'shop', 4);
  await settle();
  expect(again.inside).toHaveLength(4);
});

test('an operation that has waited for two seconds is refused and occupies no slot', async () => {
  const turns = new RowTurns();
  const { inside, refused } = crowd(turns, 'shop', 8);
  await vi.advanceTimersByTimeAsync(2_000);
  expect([inside.length, refused]).toEqual([4, Array(4).fill('PROJECT_BUSY')]);
  for (const leave of inside) leave();
  const again = crowd(turns, 'shop', 8);
  await settle();
  expect([again.inside.length, again.refused]).toEqual([4, []]);
});

test('all branches of a project together have eight turns and four waiting operations', async () => {
  const turns = new RowTurns();
  const branches = ['shop', 'shop/a', 'shop/b', 'shop/c'].map((branch) => crowd(turns, branch, 8));
  await settle();
  expect(branches.flatMap(({ inside }) => inside)).toHaveLength(8);
  expect(branches.flatMap(({ refused }) => refused)).toEqual(Array(20).fill('PROJECT_BUSY'));
  const victim = crowd(turns, 'victim', 4);
  await settle();
  expect([victim.inside.length, victim.refused]).toEqual([4, []]);
});

test('of sixteen turns the last is kept for a project that has none', async () => {
  const turns = new RowTurns();
  const attackers = ['one', 'one/a', 'two', 'two/a'].map((branch) => crowd(turns, branch, 6));
  await settle();
  expect(attackers.map(({ inside }) => inside.length)).toEqual([4, 4, 4, 3]);
  const victim = crowd(turns, 'victim', 2);
  await settle();
  expect(victim.inside).toHaveLength(1);
  // A free slot goes to the waiting project that has the fewest.
  attackers[0]?.inside[0]?.();
  attackers[0]?.inside[1]?.();
  await settle();
  expect([attackers[2]?.inside.length, victim.inside.length]).toEqual([4, 2]);
  await vi.advanceTimersByTimeAsync(2_000);
  expect(attackers[3]?.refused).toContain('HOST_BUSY');
});

test('projects that have operations cannot use up those that are admitted', async () => {
  const turns = new RowTurns();
  const attackers = ['one', 'one/a', 'two', 'two/a', 'three', 'three/a'].map((branch) =>
    crowd(turns, branch, 8),
  );
  await settle();
  expect(attackers.flatMap(({ refused }) => refused)).toContain('HOST_BUSY');
  const newcomers = ['a', 'b', 'c'].map((project) => crowd(turns, project, 1));
  await settle();
  expect(newcomers.flatMap(({ refused }) => refused)).toEqual([]);
});
