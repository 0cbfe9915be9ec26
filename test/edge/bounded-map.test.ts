import { expect, test } from 'vitest';
import { BoundedMap } from '../../edge/bounded-map.ts';

test('the least recently used entry is evicted first', () => {
  const map = new BoundedMap<string, number>(3);
  for (const [key, value] of [
    ['a', 1],
    ['b', 2],
    ['c', 3],
  ] as const)
    map.set(key, value);
  map.get('a');
  map.set('d', 4);
  expect(map.get('b')).toBeUndefined();
  expect(['a', 'c', 'd'].map((key) => map.get(key))).toEqual([1, 3, 4]);
});

test('the limit is never exceeded, and setting a known key evicts nothing', () => {
  const map = new BoundedMap<number, number>(10);
  for (let n = 0; n < 1000; n += 1) map.set(n, n);
  map.set(999, 0);
  expect(map.size).toBe(10);
  expect(map.get(999)).toBe(0);
  expect(map.get(990)).toBe(990);
});
