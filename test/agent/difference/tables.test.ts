import { expect, test } from 'vitest';
import { comparableByBlocks, type FoundTable } from '../../../agent/difference/tables.ts';

const column = { name: 'n', number: 1, type: '23', stable: true, labelled: false, missing: null };
const table: FoundTable = {
  oid: '16400',
  schema: 'public',
  name: 'item',
  relfilenode: '16400',
  rows: 1,
  pages: 1,
  logged: true,
  default_tablespace: true,
  readable: true,
  row_security: false,
  columns: [column],
};

test('blocks say something only about tables of one file, with the same columns', () => {
  const isComparable = (change: Partial<FoundTable>) =>
    comparableByBlocks(table, { ...table, ...change }, true);
  expect(isComparable({})).toBe(true);
  expect(isComparable({ columns: [{ ...column, name: 'other', missing: 'x' }] })).toBe(true);
  expect(isComparable({ columns: [{ ...column, missing: 'x' }] })).toBe(false);
  expect(isComparable({ columns: [{ ...column, number: 2 }] })).toBe(false);
  expect(isComparable({ relfilenode: '1' })).toBe(false);
  expect(isComparable({ logged: false })).toBe(false);
  expect(isComparable({ default_tablespace: false })).toBe(false);
});
