import { expect, test } from 'vitest';
import { isWidened } from '../../../agent/transfer/followed-schema.ts';

test.each([
  ['smallint', 'integer'],
  ['integer', 'bigint'],
  ['character varying(10)', 'character varying(20)'],
  ['character varying(10)', 'character varying'],
  ['character varying(10)', 'text'],
  ['text', 'character varying'],
  ['numeric(10,2)', 'numeric(12,2)'],
])('%s only holds more as %s', (from, to) => {
  expect([isWidened(from, to), isWidened(from, from)]).toEqual([true, false]);
  // A varchar without a length is a text.
  expect(isWidened(to, from)).toBe(from === 'text');
});

test.each([
  ['integer', 'numeric'],
  ['integer', 'numeric(10,2)'],
  ['integer', 'integer[]'],
  ['integer', 'text'],
  ['integer', 'boolean'],
  ['numeric(10,2)', 'numeric(12,4)'],
  ['numeric(10,2)', 'numeric'],
  ['real', 'double precision'],
  ['character(10)', 'text'],
  ['timestamp without time zone', 'timestamp with time zone'],
  ['public.mood', 'public.mood'],
])('%s may have been converted to %s in another way than by a cast', (from, to) => {
  expect([isWidened(from, to), isWidened(to, from)]).toEqual([false, false]);
});
