import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { hashingTurn } from '../../../edge/crypto/password-hash.ts';

let turn: typeof hashingTurn;

beforeEach(async () => {
  vi.useFakeTimers();
  vi.resetModules();
  ({ hashingTurn: turn } = await import('../../../edge/crypto/password-hash.ts'));
});
afterEach(() => vi.useRealTimers());

/** The milliseconds that each of `number` concurrent requests waits; null for a refused one. */
async function waits(number: number): Promise<(number | null)[]> {
  const start = Date.now();
  const waiting = Array.from({ length: number }, () =>
    turn(15).then(({ ok }) => (ok ? Date.now() - start : null)),
  );
  await vi.advanceTimersByTimeAsync(60_000);
  return Promise.all(waiting);
}

test('a single request does not wait, nor does a later one', async () => {
  expect(await waits(1)).toEqual([0]);
  expect(await waits(1)).toEqual([0]);
});

test('concurrent requests get a turn every half second, and none waits longer than 15 s', async () => {
  const waited = await waits(40);
  const admitted = Array.from({ length: 31 }, (_, n) => n * 500);
  expect(waited).toEqual([...admitted, ...Array(9).fill(null)]);
  expect(await waits(1)).toEqual([0]);
});

test('a refusal contains the time until the next attempt', async () => {
  void waits(31);
  expect(await turn(15)).toMatchObject({
    ok: false,
    failure: { code: 'RATE_LIMITED', fields: { retry_after: 16 } },
  });
});

test('no request is refused after the clock was set back', async () => {
  void waits(31);
  vi.setSystemTime(Date.now() - 3_600_000);
  expect(await waits(2)).toEqual([0, 500]);
});
