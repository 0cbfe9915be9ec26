import { afterEach, expect, test, vi } from 'vitest';
import { LoopFailed, pollUntil, runLoop, runLoops } from '../../../agent/process/loops.ts';

afterEach(() => vi.restoreAllMocks());

test('the first truthy value is returned, and the first check comes immediately', async () => {
  const check = vi.fn(async () => check.mock.calls.length === 3 && 'third');
  expect(await pollUntil<string>(check, { within: 60_000, every: 1 })).toBe('third');
  expect(check).toHaveBeenCalledTimes(3);
  expect(await pollUntil(async () => 'first', { within: 0, every: 1e9 })).toBe('first');
});

test('null is returned when the time is over', async () => {
  let now = 0;
  vi.spyOn(performance, 'now').mockImplementation(() => now);
  const check = vi.fn(async () => {
    now += 30;
    return null;
  });
  expect(await pollUntil(check, { within: 100, every: 1 })).toBeNull();
  expect(check).toHaveBeenCalledTimes(4);
});

test('an aborted signal ends the polling, also between two checks', async () => {
  const ending = new AbortController();
  const check = vi.fn(async () => {
    setTimeout(() => ending.abort(), 1);
    return undefined;
  });
  const limits = { within: Number.POSITIVE_INFINITY, every: 1e6, signal: ending.signal };
  expect(await pollUntil(check, limits)).toBeNull();
  expect(await pollUntil(check, limits)).toBeNull();
  expect(check).toHaveBeenCalledTimes(2);
});

test('an error of the check is thrown', async () => {
  const check = () => Promise.reject(new Error('away'));
  await expect(pollUntil(check, { within: 100, every: 1 })).rejects.toThrow('away');
});

test('a loop that rejects ends the others, and the reason names it', async () => {
  const stop = new AbortController();
  const ended: string[] = [];
  await runLoops(
    {
      first: async (signal) => {
        await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
        ended.push('first');
      },
      second: () => Promise.reject(new Error('a defect')),
      third: async () => {},
    },
    stop,
  );
  expect(ended).toEqual(['first']);
  expect(stop.signal.reason).toBeInstanceOf(LoopFailed);
  expect(stop.signal.reason.message).toBe('the loop "second" has failed: a defect');
});

test('work that fails is repeated, and logged once until it succeeds', async () => {
  const stop = new AbortController();
  const events: string[] = [];
  let calls = 0;
  const work = async () => {
    calls += 1;
    if (calls === 4) stop.abort();
    if (calls < 3) throw new Error('away');
  };
  const log = (event: string) => events.push(event);
  await runLoop(work, { every: 1, signal: stop.signal, log, failed: 'lost', recovered: 'found' });
  expect(calls).toBe(4);
  expect(events).toEqual(['lost', 'found']);
});
