import { expect, test } from 'vitest';
import { AttemptWindows } from '../../../agent/attempts/attempt-windows.ts';

const LIMIT = 3;
const LENGTH = 1_000;

const counted = (windows: AttemptWindows, branch: string, ...times: number[]) =>
  times.map((now) => windows.count(branch, now));
const full = (windows: AttemptWindows, now: number) => Object.fromEntries(windows.atLimit(now));

test('reports the attempt that reaches the limit, once', () => {
  const windows = new AttemptWindows(LIMIT, LENGTH);
  expect(counted(windows, 'a', 0, 1, 2, 3)).toEqual([false, false, true, false]);
  expect(full(windows, 3)).toEqual({ a: { endsIn: 997, count: 4 } });
});

test('a window opens with its first attempt and has a fixed length', () => {
  const windows = new AttemptWindows(LIMIT, LENGTH);
  counted(windows, 'a', 500, 900, 1_499, 1_499);
  expect(full(windows, 1_499)).toEqual({ a: { endsIn: 1, count: 4 } });
  expect(full(windows, 1_500)).toEqual({});
  expect(counted(windows, 'a', 1_500, 1_501, 2_499)).toEqual([false, false, true]);
});

test('each branch has its own window', () => {
  const windows = new AttemptWindows(LIMIT, LENGTH);
  counted(windows, 'a', 0, 0, 0);
  counted(windows, 'b', 0, 0);
  expect(Object.keys(full(windows, 0))).toEqual(['a']);
});

test('a resumed window is at its limit for its remaining time, at most the length of a new one', () => {
  const windows = new AttemptWindows(LIMIT, LENGTH);
  windows.resume('a', 0, 400);
  windows.resume('b', 0, 9_000);
  expect(full(windows, 399)).toEqual({ a: { endsIn: 1, count: 3 }, b: { endsIn: 601, count: 3 } });
  expect(full(windows, 400)).toEqual({ b: { endsIn: 600, count: 3 } });
  expect(full(windows, 1_000)).toEqual({});
});

test('a window that is resumed late ends in time', () => {
  const windows = new AttemptWindows(LIMIT, LENGTH);
  counted(windows, 'a', 0);
  windows.resume('b', 0, 400);
  expect(full(windows, 400)).toEqual({});
});
