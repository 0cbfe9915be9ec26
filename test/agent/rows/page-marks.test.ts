import { expect, test } from 'vitest';
import { PageMarks, stepFor } from '../../../agent/rows/pages.ts';

test('the nearest mark at or before an offset is found, in whatever order the marks were recorded', () => {
  const marks = new PageMarks();
  for (const offset of [3000, 1000, 2000]) marks.record('t', 'state', offset, [`key ${offset}`]);
  const at = (offset: number) => marks.before('t', 'state', offset)?.key[0] ?? null;
  expect([0, 999, 1000, 1999, 2500, 9999].map(at)).toEqual([
    null,
    null,
    'key 1000',
    'key 1000',
    'key 2000',
    'key 3000',
  ]);
});

test('another state of the table, or another table, has no marks', () => {
  const marks = new PageMarks();
  marks.record('t', 'before', 1000, ['a']);
  expect(marks.before('other', 'before', 1000)).toBeNull();
  expect(marks.before('t', 'after', 1000)).toBeNull();
  marks.record('t', 'after', 1000, ['b']);
  expect(marks.before('t', 'after', 1000)?.key).toEqual(['b']);
  expect(marks.before('t', 'before', 1000)).toBeNull();
});

test('the number of marks of a table, the number of tables and the length of a key are bounded', () => {
  const marks = new PageMarks();
  for (let offset = 1; offset <= 300; offset += 1) marks.record('t', '', offset, ['k']);
  expect(marks.before('t', '', 44)).toBeNull();
  expect(marks.before('t', '', 45)?.offset).toBe(45);
  for (let table = 0; table < 127; table += 1) marks.record(`t${table}`, '', 1, ['k']);
  expect(marks.before('t', '', 300)?.offset).toBe(300);
  marks.record('one more', '', 1, ['k']);
  expect(marks.before('t0', '', 1)).toBeNull();
  expect(marks.before('t', '', 300)?.offset).toBe(300);
  marks.record('long', '', 1, ['x'.repeat(1_025)]);
  expect(marks.before('long', '', 1)).toBeNull();
});

test('marks lie far enough apart to cover a whole table', () => {
  expect(stepFor(0)).toBe(1_000);
  expect(stepFor(1_000_000)).toBe(7_813);
  expect(1_000_000 / stepFor(1_000_000)).toBeLessThan(256);
  expect(stepFor(1e12)).toBe(1_000_000);
});
