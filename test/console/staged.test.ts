import { expect, test } from 'vitest';
import {
  discard,
  pageAfter,
  type Row,
  type Saved,
  type SavedRows,
  type Staged,
  stagedAfter,
  withConflicts,
  withDeletion,
  withNewRow,
  withValue,
} from '../../console/pages/tables/staged.ts';

const ORIGINAL: Row = { id: 7, a: 'one', b: null };
const KEY = '[7]';
const TARGET = { key: KEY, id: [7], original: ORIGINAL };
const SAVED: Row = { id: 7, a: 'two', b: null };
const idOf = (row: Row) => [row.id ?? null];

/** The row with this key as it is after a save. */
const only = (key: string, row: Saved['row'], ...truncated: string[]): SavedRows =>
  new Map([[key, { row, truncated }]]);

const SENT = withValue({}, TARGET, 'a', 'two');

test.each<[string, (staged: Staged) => Staged, Row, Staged]>([
  ['nothing', (staged) => staged, SAVED, {}],
  [
    'another value',
    (staged) => withValue(staged, TARGET, 'b', 'new'),
    SAVED,
    { [KEY]: { id: [7], original: SAVED, values: { b: 'new' }, isDeleted: false } },
  ],
  [
    'the value once more',
    (staged) => withValue(staged, TARGET, 'a', 'three'),
    SAVED,
    { [KEY]: { id: [7], original: SAVED, values: { a: 'three' }, isDeleted: false } },
  ],
  [
    'the value, which is taken back',
    (staged) => withValue(staged, TARGET, 'a', 'one'),
    SAVED,
    { [KEY]: { id: [7], original: SAVED, values: { a: 'one' }, isDeleted: false } },
  ],
  [
    'another value and back',
    (staged) => withValue(withValue(staged, TARGET, 'b', 'new'), TARGET, 'b', null),
    SAVED,
    {},
  ],
  [
    'another value, while the saved one was cut',
    (staged) => withValue(staged, TARGET, 'b', 'undefined'),
    { ...SAVED, a: 't' },
    { [KEY]: { id: [7], original: { id: 7, b: null }, values: { b: 'undefined' }, isDeleted: false } },
  ],
  [
    'whether the row stays',
    (staged) => withDeletion(staged, TARGET),
    SAVED,
    { [KEY]: { id: [7], original: SAVED, values: {}, isDeleted: true } },
  ],
])('what is changed while a save runs stays staged: %s', (_, change, saved, left) => {
  expect(stagedAfter(change(SENT), SENT, only(KEY, saved, ...(saved.a === 't' ? ['a'] : [])), idOf)).toEqual(
    left,
  );
});

test('a change of another row stays as it is', () => {
  const other = { key: '[8]', id: [8], original: { id: 8, a: 'x', b: null } };
  const now = withValue(SENT, other, 'a', 'y');
  expect(stagedAfter(now, SENT, only(KEY, SAVED), idOf)).toEqual(discard(now, KEY));
});

test('a deleted row has no changes', () => {
  const sent = withDeletion({}, TARGET);
  const now = withValue(withDeletion(sent, TARGET), TARGET, 'b', 'new');
  expect(stagedAfter(now, sent, only(KEY, null), idOf)).toEqual({});
});

test('a new row that is changed while it is saved has its key, and is not inserted again', () => {
  const target = { key: 'new:1', id: null, original: {} };
  const sent = withValue(withNewRow({}, 'new:1'), target, 'a', 'two');
  const saved = only('new:1', SAVED);
  const left = { id: [7], original: SAVED, values: { b: 'new' }, isDeleted: false };
  expect(stagedAfter(withValue(sent, target, 'b', 'new'), sent, saved, idOf)).toEqual({ [KEY]: left });
  expect(stagedAfter(discard(sent, 'new:1'), sent, saved, idOf)).toEqual({});
});

test('a conflict keeps what was changed while the save ran', () => {
  const theirs = { ...ORIGINAL, a: 'theirs' };
  const conflicts = new Map([[KEY, theirs]]);
  const now = withValue(SENT, TARGET, 'b', 'new');
  expect(withConflicts(now, conflicts)).toEqual({
    [KEY]: { id: [7], original: ORIGINAL, values: { a: 'two', b: 'new' }, isDeleted: false, theirs },
  });
  expect(withConflicts({}, conflicts)).toEqual({});
});

test('a page that was read before has the saved rows, and knows which values were cut', () => {
  const page = {
    table: 'book',
    schema: 'public',
    columns: [],
    limit: 50,
    offset: 0,
    rows: [{ id: 6, a: 'x' }, ORIGINAL, { id: 8, a: 'y' }],
    truncated: [
      { row: 0, column: 'a' },
      { row: 1, column: 'b' },
    ],
    has_more: false,
    estimated_rows: 3,
  };
  const saved = new Map<string, Saved>([
    [KEY, { row: { ...SAVED, a: 't' }, truncated: ['a'] }],
    ['[8]', { row: null, truncated: [] }],
  ]);
  expect(pageAfter(page, saved, idOf)).toEqual({
    ...page,
    rows: [
      { id: 6, a: 'x' },
      { ...SAVED, a: 't' },
      { id: 8, a: 'y' },
    ],
    truncated: [
      { row: 0, column: 'a' },
      { row: 1, column: 'a' },
    ],
  });
});
