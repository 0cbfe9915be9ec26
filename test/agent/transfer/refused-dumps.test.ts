import { expect, test } from 'vitest';
import { findingOfDump } from '../../../agent/transfer/source-schema.ts';

/** Messages of `pg_dump` 18. */
test.each([
  ['query failed: ERROR:  snapshot "000001BB-00000015-1" does not exist', 'connection'],
  ['query failed: FATAL:  terminating connection due to administrator command', 'connection'],
  ['query failed: server closed the connection unexpectedly', 'connection'],
  ['connection to server at "127.0.0.1", port 5432 failed: Connection refused', 'connection'],
  [
    'connection to server at "127.0.0.1", port 5432 failed: FATAL:  the database system is shutting down',
    'connection',
  ],
  ['query failed: ERROR:  permission denied for table book', 'schema'],
  ['query failed: ERROR:  invalid memory alloc request size 1073741824', 'schema'],
])('a dump that is refused with "%s" is a problem of the %s', (said, problem) => {
  const message = `pg_dump: detail: something before\npg_dump: error: ${said}\npg_dump: detail: Query was: …`;
  expect(findingOfDump({ reason: 'refused', message }, false)).toMatchObject({
    problem,
    message: expect.stringContaining(said.slice(0, 40)),
  });
});
