import { expect, test } from 'vitest';
import { readSessionMemory } from '../../../agent/measurement/server-sample.ts';

const rollup = (kilobytes: number) =>
  `55d0-7ffc ---p 00000000 00:00 0    [rollup]\nRss:   9000 kB\nPss:   5000 kB\nPss_Anon:   ${kilobytes} kB\nPss_Shmem:   4000 kB\n`;
const failing = (code: string) => () => Promise.reject(Object.assign(new Error(code), { code }));
const sessions = new Map([
  ['1', [10, 11]],
  ['2', [12]],
]);

test('the private memory of the sessions of a database is added up', async () => {
  expect(await readSessionMemory(sessions, async (pid) => rollup(pid))).toEqual(
    new Map([
      ['1', 21 * 1024],
      ['2', 12 * 1024],
    ]),
  );
});

test.each(['ENOENT', 'ESRCH'])('a session that has just ended (%s) has none', async (code) => {
  const read = (pid: number) => (pid === 10 ? failing(code)() : Promise.resolve(rollup(pid)));
  expect((await readSessionMemory(sessions, read)).get('1')).toBe(11 * 1024);
});

test.each([failing('EACCES'), async () => 'Rss: 9000 kB\n'])(
  'it is unknown where the host does not allow it, or has no such number',
  async (refused) => {
    const read = (pid: number) => (pid === 11 ? refused() : Promise.resolve(rollup(pid)));
    expect(await readSessionMemory(sessions, read)).toEqual(new Map([['2', 12 * 1024]]));
  },
);
