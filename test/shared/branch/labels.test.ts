import { expect, test } from 'vitest';
import { LabelFilter, Labels } from '../../../shared/branch/labels.ts';

const pairs = (count: number) =>
  Object.fromEntries(Array.from({ length: count }, (_, n) => [`name-${n}`, 'v']));

test.each([
  [{}],
  [pairs(16)],
  [{ pr: '7', 'ci/run': 'a=b' }],
  [{ ['n'.repeat(63)]: 'v'.repeat(63) }],
  [{ empty: '' }],
])('%j are labels', (labels) => {
  expect(Labels.parse(labels)).toEqual(labels);
});

test.each([
  [pairs(17)],
  [{ ['n'.repeat(64)]: 'v' }],
  [{ name: 'v'.repeat(64) }],
  // 32 characters of two bytes each.
  [{ name: 'é'.repeat(32) }],
  [{ name: '😀'.repeat(16) }],
  [{ '': 'v' }],
  [{ 'a=b': 'v' }],
  [{ name: 'new\nline' }],
  [{ name: 7 }],
])('%j are no labels', (labels) => {
  expect(Labels.safeParse(labels).success).toBe(false);
});

test('a filter has the form name=value; the value may contain more of these signs', () => {
  expect(LabelFilter.parse('run=a=b')).toEqual({ name: 'run', value: 'a=b' });
  expect(LabelFilter.parse('run=')).toEqual({ name: 'run', value: '' });
  for (const text of ['run', '=run', '']) expect(LabelFilter.safeParse(text).success).toBe(false);
});
