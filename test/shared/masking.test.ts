import { describe, expect, test } from 'vitest';
import { isEnclosedExpression, MaskingRules } from '../../shared/masking.ts';
import { columnOf } from '../../shared/masking-names.ts';

describe('an expression', () => {
  test.each([
    'upper(left(name, 1))',
    "'it''s (' || name",
    '"odd ) name"',
    "case when a > 0 then 'x' end",
    '(select max(id) from other)',
  ])('may be %s', (sql) => {
    expect(isEnclosedExpression(sql)).toBe(true);
  });

  test.each([
    'name) WHERE (false',
    'name), email = (email',
    'name, email',
    'name -- all of the rest',
    'name /* and */',
    'name; DROP TABLE customer',
    "E'\\') WHERE (false'",
    '$a$)$a$',
    "'open",
    '"open',
    '(name',
    ' ',
  ])('must not be %s', (sql) => {
    expect(isEnclosedExpression(sql)).toBe(false);
  });
});

const problemsOf = (...rules: object[]) =>
  (MaskingRules.safeParse(rules).error?.issues ?? []).map(({ path }) => path.join('.'));

test('a rule without a schema is about `public`', () => {
  expect(columnOf({ table: 'customer', column: 'email' })).toBe('public.customer.email');
  expect(columnOf({ table: 'shop.customer', column: 'a.b' })).toBe('shop.customer.a.b');
});

test('a policy has one rule for a column, with the arguments of its function', () => {
  const email = { table: 'customer', column: 'email' };
  expect(problemsOf({ ...email, with: 'hash' }, { ...email, column: 'phone', with: 'phone' })).toEqual([]);
  expect(
    problemsOf({ ...email, with: 'hash' }, { ...email, table: 'public.customer', with: 'null' }),
  ).toEqual(['1.column']);
  expect(problemsOf({ ...email, with: 'hash', args: { length: 3 } })).toEqual(['0']);
  expect(problemsOf({ ...email, with: 'constant' })).toEqual(['0.args']);
  expect(problemsOf({ ...email, with: 'json', args: { paths: ['a.b'] } })).toEqual(['0.args.paths.0']);
  expect(problemsOf({ ...email, with: 'date_shift', args: { days: 0 } })).toEqual(['0.args.days']);
  expect(problemsOf({ ...email, with: 'expression', args: { sql: 'a) , (b' } })).toEqual(['0.args.sql']);
  expect(problemsOf({ ...email, with: 'shuffle' })).toEqual(['0.with']);
  expect(problemsOf({ ...email, table: '', with: 'null' })).toContain('0.table');
});
