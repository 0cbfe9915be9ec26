import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { OwnSession } from '../../../agent/postgres/connect.ts';
import type { BoundedSession } from '../../../agent/rows/bounded-session.ts';
import { KeptSessions } from '../../../agent/rows/kept-sessions.ts';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** A session that records its statements; with `fails`, statements fail or never end. */
function sessionOf({ fails }: { fails?: 'now' | 'never' } = {}) {
  const done: string[] = [];
  const answer = () =>
    fails === 'never'
      ? new Promise(() => {})
      : fails
        ? Promise.reject(new Error('ended'))
        : Promise.resolve();
  const session = {
    query: (text: string) => {
      done.push(text || 'ping');
      return answer();
    },
    end: async () => void done.push('end'),
  } as unknown as OwnSession;
  const bounded: BoundedSession = {
    session,
    openedAt: performance.now(),
    renew: () => void done.push('renew'),
  };
  return { bounded, done };
}

const settled = () => vi.advanceTimersByTimeAsync(0);

test('a session waits for its login only, after it was reset', async () => {
  const kept = new KeptSessions();
  const { bounded, done } = sessionOf();
  kept.put('one', 'db_a', bounded);
  // Not before the reset is done.
  expect(await kept.take('one')).toBe(null);
  await settled();
  expect(await kept.take('two')).toBe(null);
  expect(await kept.take('one')).toBe(bounded);
  expect(done).toEqual(['DISCARD ALL', 'renew', 'ping']);
  expect(await kept.take('one')).toBe(null);
});

test('it is closed when it was idle for 10 s', async () => {
  const kept = new KeptSessions();
  const { bounded, done } = sessionOf();
  kept.put('one', 'db_a', bounded);
  await vi.advanceTimersByTimeAsync(9_999);
  expect(done).toEqual(['DISCARD ALL']);
  await vi.advanceTimersByTimeAsync(1);
  expect(done).toEqual(['DISCARD ALL', 'end']);
  expect(await kept.take('one')).toBe(null);
});

test('it is closed for a clone of its database', async () => {
  const kept = new KeptSessions();
  const [one, two] = [sessionOf(), sessionOf()];
  kept.put('one', 'db_a', one.bounded);
  kept.put('two', 'db_b', two.bounded);
  await kept.close('db_a');
  expect([one.done.at(-1), two.done.at(-1)]).toEqual(['end', 'DISCARD ALL']);
  await kept.close();
  expect(two.done.at(-1)).toBe('end');
});

test.each(['now', 'never'] as const)('one whose reset fails %s is not kept', async (fails) => {
  const kept = new KeptSessions();
  const { bounded, done } = sessionOf({ fails });
  kept.put('one', 'db_a', bounded);
  await vi.advanceTimersByTimeAsync(1_000);
  expect(done).toEqual(['DISCARD ALL', 'end']);
  expect(await kept.take('one')).toBe(null);
});

test('one that is older than a minute, a second one of a login, and the 17th are not kept', async () => {
  const kept = new KeptSessions();
  const first = sessionOf();
  kept.put('login-0', 'db_a', first.bounded);
  await settled();
  const second = sessionOf();
  kept.put('login-0', 'db_a', second.bounded);
  expect(second.done).toEqual(['end']);
  const old = sessionOf();
  await vi.advanceTimersByTimeAsync(5_000);
  kept.put('old', 'db_a', { ...old.bounded, openedAt: performance.now() - 60_000 });
  expect(old.done).toEqual(['end']);
  const more = Array.from({ length: 16 }, () => sessionOf());
  for (const [n, { bounded }] of more.entries()) {
    kept.put(`login-${n + 1}`, 'db_a', bounded);
    await settled();
  }
  expect(more.filter(({ done }) => done.includes('end'))).toEqual([more.at(-1)]);
});
