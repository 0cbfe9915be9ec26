import { expect, test } from 'vitest';
import { stretchesOf } from '../../../agent/difference/written-blocks.ts';

const link = (oid: string, source: string, source_lsn: string, lsn: string) => ({
  oid,
  source,
  source_lsn,
  lsn,
});
/** main → a → b, and main → c. Positions do not sort as texts. */
const a = link('a', 'main', '0/900', '0/A00');
const b = link('b', 'a', '0/F00', '0/1000');
const c = link('c', 'main', '1/0', '1/100');

test('a branch and its parent: what both have changed since', () => {
  expect(stretchesOf('a', 'main', [a], [])).toEqual([
    { database: 'a', from: '0/A00', to: null },
    { database: 'main', from: '0/900', to: null },
  ]);
});

test('a branch of a branch: the one in between counts up to the clone', () => {
  expect(stretchesOf('main', 'b', [], [b, a])).toEqual([
    { database: 'b', from: '0/1000', to: null },
    { database: 'a', from: '0/A00', to: '0/1000' },
    { database: 'main', from: '0/900', to: null },
  ]);
});

test('two branches: what their source has changed between them', () => {
  expect(stretchesOf('c', 'b', [c], [b, a])).toEqual([
    { database: 'c', from: '1/100', to: null },
    { database: 'b', from: '0/1000', to: null },
    { database: 'a', from: '0/A00', to: '0/1000' },
    { database: 'main', from: '0/900', to: '1/100' },
  ]);
});

test('a database and itself differ in nothing, and strangers in everything', () => {
  expect(stretchesOf('a', 'a', [a], [a])).toEqual([]);
  expect(stretchesOf('a', 'x', [a], [])).toBeNull();
});
