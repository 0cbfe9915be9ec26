import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { hashingTurn } from '../../../../edge/sign-in/accounts/hashing-turn.ts';

let turn: typeof hashingTurn;

beforeEach(async () => {
  vi.useFakeTimers();
  vi.resetModules();
  ({ hashingTurn: turn } = await import('../../../../edge/sign-in/accounts/hashing-turn.ts'));
});
afterEach(() => vi.useRealTimers());

/** How many milliseconds each of so many that come at once waits; null: sent away. */
async function waits(number: number): Promise<(number | null)[]> {
  const start = Date.now();
  const waiting = Array.from({ length: number }, () =>
    turn().then(
      () => Date.now() - start,
      () => null,
    ),
  );
  await vi.advanceTimersByTimeAsync(60_000);
  return Promise.all(waiting);
}

test('one is not held up, nor another after it', async () => {
  expect(await waits(1)).toEqual([0]);
  expect(await waits(1)).toEqual([0]);
});

test('of a crowd one comes every half second, and none waits longer than 15 s', async () => {
  const answers = await waits(40);
  const admitted = Array.from({ length: 31 }, (_, n) => n * 500);
  expect(answers).toEqual([...admitted, ...Array(9).fill(null)]);
  expect(await waits(1)).toEqual([0]);
});

test('who is sent away hears when to come again', async () => {
  void waits(31);
  await expect(turn()).rejects.toMatchObject({
    failure: { code: 'RATE_LIMITED', fields: { retry_after: 16 } },
  });
});

test('a clock that goes back sends nobody away', async () => {
  void waits(31);
  vi.setSystemTime(Date.now() - 3_600_000);
  expect(await waits(2)).toEqual([0, 500]);
});
