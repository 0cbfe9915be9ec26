import { expect, test } from 'vitest';
import { isDisconnected } from '../../../agent/dump/pg-dump.ts';

/** Messages of `pg_dump` 18. */
test.each([
  ['query failed: ERROR:  snapshot "000001BB-00000015-1" does not exist', true],
  ['query failed: FATAL:  terminating connection due to administrator command', true],
  ['query failed: server closed the connection unexpectedly', true],
  ['connection to server at "127.0.0.1", port 5432 failed: Connection refused', true],
  [
    'connection to server at "127.0.0.1", port 5432 failed: FATAL:  the database system is shutting down',
    true,
  ],
  ['query failed: ERROR:  permission denied for table book', false],
  ['query failed: ERROR:  invalid memory alloc request size 1073741824', false],
])('a dump that ended with "%s" had lost its connection: %s', (said, isIt) => {
  const all = `pg_dump: detail: something before\npg_dump: error: ${said}\npg_dump: detail: Query was: …`;
  expect(isDisconnected(all)).toBe(isIt);
});
