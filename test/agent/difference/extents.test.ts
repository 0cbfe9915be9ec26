import { expect, test } from 'vitest';
import { joined, sameBytes, sharedExtents, without } from '../../../agent/difference/extents.ts';

const LISTING = `Filesystem type is: 58465342
File size of 16390 is 32768 (8 blocks of 4096 bytes)
 ext:     logical_offset:        physical_offset: length:   expected: flags:
   0:        0..       3:       1000..      1003:      4:             shared
   1:        4..       5:       2000..      2001:      2:       1004: 
   2:        6..       7:       3000..      3001:      2:       2002: last,unwritten,shared,eof
16390: 3 extents found
File size of 16390.1 is 8192 (2 blocks of 4096 bytes)
 ext:     logical_offset:        physical_offset: length:   expected: flags:
   0:        0..       1:       5000..      5001:      2:             last,shared,eof
16390.1: 1 extent found
`;

test('only written extents that are shared have a place', () => {
  expect([...sharedExtents(LISTING)]).toEqual([
    ['16390', [{ from: 0, to: 16_384, at: 4_096_000 }]],
    ['16390.1', [{ from: 0, to: 8_192, at: 20_480_000 }]],
  ]);
});

test('bytes are the same at the same place of the disk only', () => {
  const first = [
    { from: 0, to: 100, at: 1_000 },
    { from: 100, to: 200, at: 5_000 },
    { from: 300, to: 400, at: 7_000 },
  ];
  const second = [
    { from: 0, to: 30, at: 1_000 },
    { from: 50, to: 150, at: 1_050 },
    { from: 150, to: 350, at: 5_050 },
  ];
  expect(sameBytes(first, second)).toEqual([
    [0, 30],
    [50, 100],
    [150, 200],
  ]);
});

test('ranges are joined, and taken from a whole', () => {
  const ranges = joined([
    [7, 9],
    [0, 2],
    [1, 4],
    [4, 5],
    [6, 6],
  ]);
  expect(ranges).toEqual([
    [0, 5],
    [7, 9],
  ]);
  expect(without(ranges, 12)).toEqual([
    [5, 7],
    [9, 12],
  ]);
  expect(without(ranges, 6)).toEqual([[5, 6]]);
  expect(without([], 3)).toEqual([[0, 3]]);
});
