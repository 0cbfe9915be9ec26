import { describe, expect, test } from 'vitest';
import {
  columnsFor,
  createOf,
  formProblem,
  insertOf,
  parseCsv,
  selectOf,
  typeOf,
} from '../../console/pages/tables/table-sql.ts';

const HOSTILE = `a"b'; drop table x`;
const TABLE = { schema: 'public', name: HOSTILE };

describe('a CSV text', () => {
  test.each([
    [
      'a,b\r\n1,2\r\n',
      [
        ['a', 'b'],
        ['1', '2'],
      ],
    ],
    [
      '\uFEFFa,b\n1,',
      [
        ['a', 'b'],
        ['1', null],
      ],
    ],
    ['a\n""\n', [['a'], ['']]],
    [
      'a,b\n"x, ""y""","line\nbreak"',
      [
        ['a', 'b'],
        ['x, "y"', 'line\nbreak'],
      ],
    ],
    [
      'a,b\r1,2',
      [
        ['a', 'b'],
        ['1', '2'],
      ],
    ],
    [
      'a,b\n\n1,2\n\n',
      [
        ['a', 'b'],
        ['1', '2'],
      ],
    ],
    ['', [[]]],
  ])('%j is %j', (text, rows) => {
    expect(parseCsv(text)).toEqual(rows);
  });

  test.each([
    ['a\n"open', 'The quote in line 2 does not end.'],
    ['a\n"x"y', 'A quoted cell in line 2 is followed by text.'],
    ['a,b\n1', 'Row 2 has 1 cells, and the first row 2.'],
  ])('%j is refused: %s', (text, message) => {
    expect(() => parseCsv(text)).toThrow(message);
  });
});

test.each([
  [['1', '-20', null], 'bigint'],
  [['1', '2.50'], 'numeric'],
  [['007'], 'text'],
  [['12345678901234567890'], 'numeric'],
  [['true', 'f'], 'boolean'],
  [['2026-01-31'], 'date'],
  [['2026-01-31 10:00:00'], 'timestamp'],
  [['2026-01-31T10:00Z'], 'timestamptz'],
  [['1', 'x'], 'text'],
  [[null], 'text'],
])('%j is %s', (cells, type) => {
  expect(typeOf(cells)).toBe(type);
});

test('names and values stay what they are in the statements', () => {
  expect(insertOf(TABLE, [{ name: HOSTILE, type: 'text' }], [[`it's`], [null]])).toBe(
    `insert into "public"."a""b'; drop table x" ("a""b'; drop table x") select c0::text from json_to_recordset('[{"c0":"it''s"},{"c0":null}]') as r (c0 text)`,
  );
  const filters = [
    { column: HOSTILE, operator: 'contains' as const, value: HOSTILE },
    { column: 'n', operator: 'is_null' as const },
  ];
  expect(selectOf(TABLE, '*', { filters, order: { column: 'n', direction: 'desc' } })).toEqual({
    sql: `select * from "public"."a""b'; drop table x" where strpos(lower("a""b'; drop table x"::text), lower($1::text)) > 0 and "n" is not distinct from null order by "n" desc`,
    params: [HOSTILE],
  });
});

test('a new table has a key: the column id if it can be one, or a generated one', () => {
  const table = { schema: 'public', name: 'item' };
  const columns = [
    { name: 'id', type: 'bigint' },
    { name: 'name', type: 'text' },
  ];
  expect(
    createOf(table, columns, [
      ['1', 'a'],
      ['2', 'b'],
    ]),
  ).toBe('create table "public"."item" ("id" bigint primary key, "name" text)');
  expect(
    createOf(table, columns, [
      ['1', 'a'],
      ['1', 'b'],
    ]),
  ).toBe('create table "public"."item" ("id" bigint, "name" text)');
  expect(createOf(table, columns.slice(1), [['a']])).toBe(
    'create table "public"."item" (id bigint generated always as identity primary key, "name" text)',
  );
});

test('a file for a table names its columns, and none that PostgreSQL generates', () => {
  const column = { type: 'integer', nullable: true, is_primary_key: false };
  const columns = [
    { name: 'id', identity: 'always' as const, ...column },
    { name: 'n', ...column },
  ];
  expect(columnsFor(['n'], columns)).toEqual([{ name: 'n', type: 'integer' }]);
  expect(() => columnsFor(['x'], columns)).toThrow('no column “x”');
  expect(() => columnsFor(['id'], columns)).toThrow('generates the column “id”');
});

test.each([
  ['jsonb', '{"a": 1}', null],
  ['json', '{a}', 'This is no JSON'],
  ['integer[]', '{1,2}', null],
  ['integer[]', '[0:1]={1,2}', null],
  ['integer[]', '1,2', 'An array is written in braces'],
  ['text', '{', null],
])('%s %s: %s', (type, text, problem) => {
  const found = formProblem({ type }, text);
  if (problem === null) expect(found).toBeNull();
  else expect(found).toContain(problem);
});
