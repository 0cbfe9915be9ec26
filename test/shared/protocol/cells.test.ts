import { expect, test } from 'vitest';
import { z } from 'zod';
import { Cell, Cells } from '../../../shared/protocol/tables.ts';

/** By the union alone. */
const Checked = z.array(Cell);

test.each([
  ['plain values', [1, -0.5, true, false, null, '', '💡'], true],
  ['no cell', [], true],
  ['a cell that is cut', ['a', { cut: 'b' }], true],
  ['a lone surrogate', ['a', '\ud800'], false],
  ['no number', [Number.NaN], false],
  ['an infinite number', [Number.POSITIVE_INFINITY], false],
  ['a missing value', [undefined], false],
  ['a list', [[]], false],
  ['another object', [{ cut: 'b', more: 1 }], false],
  ['a text', 'text', false],
  ['an object', { length: 0 }, false],
])('a row with %s is checked as by its cells', (_what, row, isValid) => {
  expect(Checked.safeParse(row).success).toBe(isValid);
  const reading = Cells.safeParse(row);
  expect(reading.success).toBe(isValid);
  if (reading.success) expect(reading.data).toEqual(row);
});
