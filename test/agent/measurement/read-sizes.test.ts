import { expect, test } from 'vitest';
import { readSizes } from '../../../agent/measurement/read-server.ts';
import type { Queryable } from '../../../agent/postgres/connect.ts';

const took = (code: string) => Object.assign(new Error('canceling statement'), { code });

/** A server on which to size database 2 brings this error. */
const session = (error: Error) =>
  ({
    query: async (_sql: string, [databases]: [string[]]) => {
      if (databases.includes('2')) throw error;
      return { rows: databases.map((oid) => ({ oid, bytes: '8192' })) };
    },
  }) as unknown as Queryable;

test('a database that takes too long to size keeps no other from being sized', async () => {
  expect(await readSizes(session(took('57014')), ['1', '2', '3'])).toEqual(
    new Map([
      ['1', 8192],
      ['3', 8192],
    ]),
  );
});

test('a server that is away is told', async () => {
  await expect(readSizes(session(took('57P01')), ['1', '2'])).rejects.toMatchObject({ code: '57P01' });
});
