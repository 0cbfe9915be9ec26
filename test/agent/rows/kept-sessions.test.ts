import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { OwnSession } from '../../../agent/postgres/connect.ts';
import { KeptSessions, type ReusableSession } from '../../../agent/rows/kept-sessions.ts';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

let pids = 0;

/** A session that records what is done with it. */
function sessionOf(reset: () => Promise<unknown> = async () => {}, project = `db_${pids}_prod`) {
  const done: string[] = [];
  const session = {
    query: (text: string) => {
      done.push(text);
      return reset();
    },
    end: async () => void done.push('end'),
  } as unknown as OwnSession;
  pids += 1;
  const openedAt = performance.now();
  const reusable: ReusableSession = { session, pid: pids, project, openedAt, isLost: false };
  return { reusable, done };
}

const settled = () => vi.advanceTimersByTimeAsync(0);

test('a session waits for its login only, after it was reset', async () => {
  const kept = new KeptSessions();
  const { reusable, done } = sessionOf();
  kept.put('one', reusable);
  expect(kept.has(reusable.pid)).toBe(false);
  await settled();
  expect([kept.has(reusable.pid), await kept.take('two')]).toEqual([true, null]);
  expect(await kept.take('one')).toBe(reusable);
  expect(done).toEqual(['DISCARD ALL']);
  expect([kept.has(reusable.pid), await kept.take('one')]).toEqual([false, null]);
});

test('an operation waits for the end of the reset', async () => {
  const kept = new KeptSessions();
  const reset = Promise.withResolvers<void>();
  const { reusable } = sessionOf(() => reset.promise);
  kept.put('one', reusable);
  const taken = [kept.take('one'), kept.take('one')];
  reset.resolve();
  expect(await Promise.all(taken)).toEqual([reusable, null]);
});

test('it is closed 8 s after its login, however often it was used', async () => {
  const kept = new KeptSessions();
  const { reusable, done } = sessionOf();
  for (let second = 0; second < 8; second += 1) {
    kept.put('one', reusable);
    await vi.advanceTimersByTimeAsync(999);
    expect(await kept.take('one')).toBe(reusable);
    await vi.advanceTimersByTimeAsync(1);
  }
  expect(done).not.toContain('end');
  kept.put('one', reusable);
  expect([done.at(-1), await kept.take('one')]).toEqual(['end', null]);
});

test('it is closed although no operation takes it', async () => {
  const kept = new KeptSessions();
  const { reusable, done } = sessionOf();
  kept.put('one', reusable);
  await vi.advanceTimersByTimeAsync(7_999);
  expect(done).toEqual(['DISCARD ALL']);
  await vi.advanceTimersByTimeAsync(1);
  expect(done).toEqual(['DISCARD ALL', 'end']);
});

test('all are closed, also those that are being reset', async () => {
  const kept = new KeptSessions();
  const one = sessionOf();
  const two = sessionOf();
  kept.put('one', one.reusable);
  await settled();
  kept.put('two', two.reusable);
  await kept.close();
  expect([one.done.at(-1), two.done.at(-1)]).toEqual(['end', 'end']);
});

test.each([
  ['fails', () => Promise.reject(new Error('ended'))],
  ['does not end', () => new Promise(() => {})],
])('one whose reset %s is closed', async (_, reset) => {
  const kept = new KeptSessions();
  const { reusable, done } = sessionOf(reset);
  kept.put('one', reusable);
  await vi.advanceTimersByTimeAsync(1_000);
  expect([done, await kept.take('one')]).toEqual([['DISCARD ALL', 'end'], null]);
});

test('one that has ended makes room for another one', async () => {
  const kept = new KeptSessions();
  const lost = sessionOf();
  const next = sessionOf();
  kept.put('one', lost.reusable);
  await settled();
  lost.reusable.isLost = true;
  kept.put('one', next.reusable);
  await settled();
  expect([kept.has(lost.reusable.pid), await kept.take('one')]).toEqual([false, next.reusable]);
});

test('a second one of a login, and the ninth of a host, are closed', async () => {
  const kept = new KeptSessions();
  const sessions = Array.from({ length: 9 }, () => sessionOf());
  for (const [login, { reusable }] of sessions.entries()) {
    kept.put(`login-${login}`, reusable);
    await settled();
  }
  expect(sessions.filter(({ done }) => done.includes('end'))).toEqual([sessions.at(-1)]);
  expect(await kept.take('login-7')).not.toBe(null);
  const second = sessionOf();
  kept.put('login-0', second.reusable);
  expect(second.done).toEqual(['end']);
});

test('the third one of a project is closed, and another project has room', async () => {
  const kept = new KeptSessions();
  const sessions = ['one', 'one', 'one', 'other'].map((project) => sessionOf(undefined, project));
  for (const [login, { reusable }] of sessions.entries()) {
    kept.put(`login-${login}`, reusable);
    await settled();
  }
  expect(sessions.filter(({ done }) => done.includes('end'))).toEqual([sessions[2]]);
});
