import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { Walks } from '../../../agent/rows/walks.ts';

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

/** A walk that takes so long, or a moment more when it is told to end. */
const walkFor = (milliseconds: number) =>
  vi.fn(
    (signal: AbortSignal) =>
      new Promise<void>((resolve, reject) => {
        setTimeout(resolve, milliseconds);
        signal.addEventListener('abort', () => setTimeout(() => reject(new Error('ended')), 50));
      }),
  );

test('there is one walk of a branch, and two of the host', async () => {
  const walks = new Walks();
  const walk = walkFor(100);
  walks.start('one', 'one/t', walk);
  walks.start('one', 'one/t', walk);
  walks.start('one', 'one/u', walk);
  expect(walk).toHaveBeenCalledTimes(1);
  walks.start('two', 'two/t', walk);
  walks.start('three', 'three/t', walk);
  expect(walk).toHaveBeenCalledTimes(2);
  expect([walks.isWalking('one', 'one/t'), walks.isWalking('one', 'one/u')]).toEqual([true, false]);
  await vi.advanceTimersByTimeAsync(100);
  expect(walks.isWalking('one', 'one/t')).toBe(false);
  walks.start('one', 'one/u', walk);
  walks.start('three', 'three/t', walk);
  expect(walk).toHaveBeenCalledTimes(4);
});

test('a table that was walked is left alone for nine times as long', async () => {
  const walks = new Walks();
  const walk = walkFor(100);
  walks.start('one', 'one/t', walk);
  await vi.advanceTimersByTimeAsync(100);
  await vi.advanceTimersByTimeAsync(899);
  walks.start('one', 'one/t', walk);
  expect(walk).toHaveBeenCalledTimes(1);
  await vi.advanceTimersByTimeAsync(2);
  walks.start('one', 'one/t', walk);
  expect(walk).toHaveBeenCalledTimes(2);
});

test('a walk that fails is over, and nobody hears of it', async () => {
  const walks = new Walks();
  walks.start('one', 'one/t', () => Promise.reject(new Error('away')));
  await vi.advanceTimersByTimeAsync(0);
  expect(walks.isWalking('one', 'one/t')).toBe(false);
});

test('closing ends every walk, waits for it, and lets no other start', async () => {
  const walks = new Walks();
  const walk = walkFor(60_000);
  walks.start('one', 'one/t', walk);
  const closed = walks.close().then(() => walks.isWalking('one', 'one/t'));
  await vi.advanceTimersByTimeAsync(50);
  expect(await closed).toBe(false);
  walks.start('two', 'two/t', walk);
  expect(walk).toHaveBeenCalledTimes(1);
});
