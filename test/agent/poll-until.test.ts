import { expect, test } from 'vitest';
import { pollUntil } from '../../agent/poll-until.ts';

test('returns the first truthy value', async () => {
  const values = [null, undefined, false, 'found', 'too late'] as const;
  let checks = 0;
  const check = async () => values[checks++];
  expect(await pollUntil(check, { within: 10_000, every: 1 })).toBe('found');
  expect(checks).toBe(4);
});

test('checks at least once, and returns null when time runs out', async () => {
  let checks = 0;
  const check = async () => {
    checks += 1;
    return false as const;
  };
  expect(await pollUntil(check, { within: 0, every: 1 })).toBeNull();
  expect(checks).toBe(1);
});

test('stops when the signal aborts, during a wait too', async () => {
  const stop = new AbortController();
  const check = async () => {
    setImmediate(() => stop.abort());
    return null;
  };
  expect(await pollUntil(check, { within: 60_000, every: 60_000, signal: stop.signal })).toBeNull();
});

test('throws what the check throws', async () => {
  const check = () => Promise.reject(new Error('broken'));
  await expect(pollUntil(check, { within: 10_000, every: 1 })).rejects.toThrow('broken');
});
