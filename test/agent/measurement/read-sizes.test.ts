import { expect, test } from 'vitest';
import { readSizes } from '../../../agent/measurement/sizes.ts';
import type { Queryable } from '../../../agent/postgres/connect.ts';

const failure = (code: string) => Object.assign(new Error('canceling statement'), { code });

/** A server on which sizing database 2 fails with this error. */
const session = (error: Error) =>
  ({
    query: async (_sql: string, [databases]: [string[]]) => {
      if (databases.includes('2')) throw error;
      return { rows: databases.map((oid) => ({ oid, bytes: '8192' })) };
    },
  }) as unknown as Queryable;

test.each([
  ['exceeds the timeout', '57014'],
  ['was just dropped', '42704'],
])('a database that %s does not prevent sizing the others', async (_, code) => {
  expect(await readSizes(session(failure(code)), ['1', '2', '3'])).toEqual(
    new Map([
      ['1', 8192],
      ['3', 8192],
    ]),
  );
});

test('other errors are thrown', async () => {
  await expect(readSizes(session(failure('57P01')), ['1', '2'])).rejects.toMatchObject({ code: '57P01' });
});
