import { expect, test } from 'vitest';
import { PageMarks, stepFor } from '../../../agent/rows/page-marks.ts';

test('the nearest mark at or before an offset leads there, whatever the order they came in', () => {
  const marks = new PageMarks();
  for (const offset of [3000, 1000, 2000]) marks.note('t', 'state', offset, [`key ${offset}`]);
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
  marks.note('t', 'before', 1000, ['a']);
  expect(marks.before('other', 'before', 1000)).toBeNull();
  expect(marks.before('t', 'after', 1000)).toBeNull();
  marks.note('t', 'after', 1000, ['b']);
  expect(marks.before('t', 'after', 1000)?.key).toEqual(['b']);
  expect(marks.before('t', 'before', 1000)).toBeNull();
});

test('a state is claimed once', () => {
  const marks = new PageMarks();
  expect(marks.isClaimed('t', 'before')).toBe(false);
  marks.claim('t', 'before');
  expect([marks.isClaimed('t', 'before'), marks.isClaimed('other', 'before')]).toEqual([true, false]);
  expect(marks.isClaimed('t', 'after')).toBe(false);
});

test('marks are bounded: by table, by tables, by length', () => {
  const marks = new PageMarks();
  for (let offset = 1; offset <= 300; offset += 1) marks.note('t', '', offset, ['k']);
  expect(marks.before('t', '', 44)).toBeNull();
  expect(marks.before('t', '', 45)?.offset).toBe(45);
  for (let table = 0; table < 127; table += 1) marks.note(`t${table}`, '', 1, ['k']);
  expect(marks.before('t', '', 300)?.offset).toBe(300);
  marks.note('one more', '', 1, ['k']);
  expect(marks.before('t0', '', 1)).toBeNull();
  expect(marks.before('t', '', 300)?.offset).toBe(300);
  marks.note('long', '', 1, ['x'.repeat(1_025)]);
  expect(marks.before('long', '', 1)).toBeNull();
});

test('marks lie far enough apart for a whole table to have its place', () => {
  expect(stepFor(0)).toBe(1_000);
  expect(stepFor(1_000_000)).toBe(7_813);
  expect(1_000_000 / stepFor(1_000_000)).toBeLessThan(256);
  expect(stepFor(1e12)).toBe(1_000_000);
});
