import { expect, test } from 'vitest';
import { asHostError } from '../../../agent/postgres/postgres-failure.ts';
import { HostError } from '../../../agent/process/host-error.ts';

const error = (message: string, code?: string) => Object.assign(new Error(message), code ? { code } : {});

test.each([
  [error('connect ECONNREFUSED /run/.s.PGSQL.5432', 'ECONNREFUSED'), 'POSTGRES_UNAVAILABLE'],
  [error('connect ENOENT /run/.s.PGSQL.5432', 'ENOENT'), 'POSTGRES_UNAVAILABLE'],
  [error('Connection terminated unexpectedly'), 'POSTGRES_UNAVAILABLE'],
  [error('terminating connection due to administrator command', '57P01'), 'POSTGRES_UNAVAILABLE'],
  [error('timeout exceeded when trying to connect'), 'HOST_BUSY'],
  [error('sorry, too many clients already', '53300'), 'HOST_BUSY'],
  [error('could not extend file', '53100'), 'HOST_FULL'],
  [
    error(
      'database is not accepting commands that assign new transaction IDs to avoid wraparound data loss in database "a"',
      '54000',
    ),
    'POSTGRES_UNAVAILABLE',
  ],
])('%s is %s', (thrown, code) => {
  expect(asHostError(thrown)).toMatchObject({ code, message: expect.stringContaining(thrown.message) });
});

test('an error that says nothing about the host is returned as it is', () => {
  for (const thrown of [
    error('ENOENT: no such file or directory', 'ENOENT'),
    error('syntax error', '42601'),
    error('index row size 2800 exceeds btree version 4 maximum 2704', '54000'),
    new HostError('SOURCE_BUSY', 'busy'),
    'text',
  ]) {
    expect(asHostError(thrown)).toBe(thrown);
  }
});
