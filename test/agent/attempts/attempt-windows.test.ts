import { expect, test } from 'vitest';
import { AttemptWindows } from '../../../agent/attempts/attempt-windows.ts';

const LIMIT = 3;
const LENGTH = 1_000;
const HOME = '192.0.2.1/32';
const AWAY = '198.51.100.1/32';

const counted = (windows: AttemptWindows, branch: string, ...times: number[]) =>
  times.map((now) => windows.count(branch, HOME, now));
const full = (windows: AttemptWindows, now: number) =>
  Object.fromEntries(
    [...windows.atLimit(now).values()].map(({ branch_id, address, end, count }) => [
      `${branch_id} ${address}`,
      { endsIn: end - now, count },
    ]),
  );

test('reports the attempt that reaches the limit, once', () => {
  const windows = new AttemptWindows('address', () => LIMIT, LENGTH);
  expect(counted(windows, 'a', 0, 1, 2, 3)).toEqual([false, false, true, false]);
  expect(full(windows, 3)).toEqual({ [`a ${HOME}`]: { endsIn: 997, count: 4 } });
});

test('a window opens with its first attempt and has a fixed length', () => {
  const windows = new AttemptWindows('address', () => LIMIT, LENGTH);
  counted(windows, 'a', 500, 900, 1_499, 1_499);
  expect(full(windows, 1_499)).toEqual({ [`a ${HOME}`]: { endsIn: 1, count: 4 } });
  expect(full(windows, 1_500)).toEqual({});
  expect(counted(windows, 'a', 1_500, 1_501, 2_499)).toEqual([false, false, true]);
});

test('each branch and each network has its own window', () => {
  const windows = new AttemptWindows('address', () => LIMIT, LENGTH);
  counted(windows, 'a', 0, 0, 0);
  counted(windows, 'b', 0, 0);
  expect(windows.count('a', AWAY, 0)).toBe(false);
  expect(Object.keys(full(windows, 0))).toEqual([`a ${HOME}`]);
});

test('by default, the attempts of all networks on a branch count together', () => {
  const windows = new AttemptWindows('branch', () => LIMIT, LENGTH);
  expect(windows.count('a', HOME, 0)).toBe(false);
  expect(windows.count('a', AWAY, 0)).toBe(false);
  expect(windows.count('b', AWAY, 0)).toBe(false);
  expect(windows.count('a', null, 0)).toBe(true);
  expect(full(windows, 0)).toEqual({ 'a null': { endsIn: LENGTH, count: LIMIT } });
});

test('guesses from many networks are bounded by a limit of the branch, twenty times as high', () => {
  const windows = new AttemptWindows('address', () => LIMIT, LENGTH);
  const reached = Array.from({ length: 20 * LIMIT }, (_, n) => windows.count('a', `10.0.0.${n}/32`, 0));
  expect(reached.indexOf(true)).toBe(20 * LIMIT - 1);
  expect(full(windows, 0)).toEqual({ 'a null': { endsIn: LENGTH, count: 20 * LIMIT } });
});

test('attempts of unknown networks count for the branch alone', () => {
  const windows = new AttemptWindows('address', () => LIMIT, LENGTH);
  for (let n = 1; n < 20 * LIMIT; n++) expect(windows.count('a', null, 0)).toBe(false);
  expect(windows.count('a', null, 0)).toBe(true);
});

test('a limit that is raised opens a network before its window ends', () => {
  let limit = LIMIT;
  const windows = new AttemptWindows('address', (branch) => (branch === 'a' ? limit : LIMIT), LENGTH);
  counted(windows, 'a', 0, 0, 0);
  counted(windows, 'b', 0, 0, 0);
  limit = 5;
  expect(Object.keys(full(windows, 1))).toEqual([`b ${HOME}`]);
  expect(counted(windows, 'a', 1, 1)).toEqual([false, true]);
});

test('of too many networks the oldest below its limit is forgotten', () => {
  const windows = new AttemptWindows('address', () => LIMIT, LENGTH, 2);
  counted(windows, 'a', 0, 0, 0);
  windows.count('a', '10.0.0.1/32', 0);
  windows.count('a', '10.0.0.1/32', 0);
  windows.count('a', '10.0.0.2/32', 0);
  // Forgotten: this would be its last attempt otherwise.
  expect(windows.count('a', '10.0.0.1/32', 0)).toBe(false);
  expect(Object.keys(full(windows, 0))).toEqual([`a ${HOME}`]);
});

test('a resumed window is at its limit for its remaining time, at most the length of a new one', () => {
  const windows = new AttemptWindows('address', () => LIMIT, LENGTH);
  windows.resume({ branch_id: 'a', address: HOME }, 0, 400);
  windows.resume({ branch_id: 'b', address: null }, 0, 9_000);
  expect(full(windows, 399)).toEqual({
    [`a ${HOME}`]: { endsIn: 1, count: 3 },
    'b null': { endsIn: 601, count: 60 },
  });
  expect(full(windows, 400)).toEqual({ 'b null': { endsIn: 600, count: 60 } });
  expect(full(windows, 1_000)).toEqual({});
});

test('a window that is resumed late ends in time', () => {
  const windows = new AttemptWindows('address', () => LIMIT, LENGTH);
  counted(windows, 'a', 0);
  windows.resume({ branch_id: 'b', address: HOME }, 0, 400);
  expect(full(windows, 400)).toEqual({});
});
