import { expect, test } from 'vitest';
import { type Observations, reportOf } from '../../../agent/rehearsal/report.ts';
import type { WatchedTable } from '../../../agent/rehearsal/watched-tables.ts';

const book: WatchedTable = {
  oid: '1',
  schema: 'public',
  name: 'book',
  kind: 'r',
  file: '100',
  bytes: 200,
  root: '1',
  is_countable: true,
  estimate: 10,
  inserted: 0,
  deleted: 0,
  rows: 10,
};
/** Too large to be counted. */
const large = { ...book, rows: null };

const EXCLUSIVE = '1 AccessExclusiveLock';

function observed(
  before: WatchedTable[],
  after: WatchedTable[],
  longest: Record<string, number> = {},
  unwatched = 0,
): Observations {
  return {
    limits: { lock_ms: 1000, table_bytes: 200 },
    before: { tables: before, unwatched: 0 },
    after: { tables: after, unwatched },
    locks: { samples: 3, longest_gap_ms: 50, sampled_at: 0, longest },
    wal: { bytes: 0, exact: true },
    schema: { changes: [], statements: [], not_modelled: [], schema_proven: true, unproven_reason: null },
  };
}

test.each<[string, Observations, string[]]>([
  ['nothing', observed([book], [book]), []],
  ['a long lock', observed([book], [book], { [EXCLUSIVE]: 1000 }), ['lock']],
  ['a short lock', observed([book], [book], { [EXCLUSIVE]: 999 }), []],
  ['a weaker lock', observed([book], [book], { '1 ShareLock': 9000 }), []],
  ['a lock of another table', observed([book], [book], { '11 AccessExclusiveLock': 9000 }), []],
  ['a lock of a small table', observed([{ ...book, bytes: 199 }], [book], { [EXCLUSIVE]: 9000 }), []],
  ['a rewrite', observed([book], [{ ...book, file: '101' }]), ['rewrite']],
  ['a rewrite of an empty table', observed([{ ...book, bytes: 0 }], [{ ...book, file: '101' }]), []],
  [
    'a refreshed materialized view',
    observed([{ ...book, kind: 'm' }], [{ ...book, kind: 'm', file: '101' }]),
    [],
  ],
  ['more rows', observed([book], [{ ...book, rows: 11 }]), []],
  ['fewer rows', observed([book], [{ ...book, rows: 9 }]), ['rows_lost']],
  ['a dropped table', observed([book], []), ['rows_lost']],
  ['a dropped table without rows', observed([{ ...book, rows: 0 }], []), []],
  ['a table that is too small to be watched now', observed([book], [], {}, 5), []],
  [
    'deleted rows of a table that was not counted',
    observed([large], [{ ...large, deleted: 3 }]),
    ['rows_lost'],
  ],
  ['replaced rows of such a table', observed([large], [{ ...large, deleted: 3, inserted: 3 }]), []],
  [
    'such a table, emptied',
    observed([large], [{ ...large, file: '101', bytes: 0 }]),
    ['rewrite', 'rows_lost'],
  ],
  [
    'rows of a partition that moved',
    observed([{ ...book, root: '7' }], [{ ...book, root: '7', rows: 0 }]),
    [],
  ],
])('%s', (_, observations, kinds) => {
  const { verdict, dangers } = reportOf(observations);
  expect(dangers.map(({ kind }) => kind)).toEqual(kinds);
  expect(verdict).toBe(kinds.length > 0 ? 'danger' : 'safe');
});

test('tables of which nothing is known are not listed', () => {
  const other = { ...book, oid: '2', root: '2', name: 'author' };
  const { tables } = reportOf(observed([book, other], [{ ...book, rows: 11 }, other]));
  expect(tables).toMatchObject([
    { name: 'book', rows_before: { count: 10, exact: true }, rows_after: { count: 11, exact: true } },
  ]);
});
