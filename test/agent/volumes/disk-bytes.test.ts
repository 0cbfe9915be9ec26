import {
  closeSync,
  constants,
  copyFileSync,
  mkdirSync,
  openSync,
  rmSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  measureFolder,
  readBtrfsSummary,
  readLayout,
  sumExtents,
  unionBytes,
} from '../../../agent/volumes/disk-bytes.ts';
import { eventually } from '../../support/eventually.ts';
import { mountXfs, type XfsMount, xfsHindrance } from '../../support/stack/xfs.ts';

const LISTING = `Filesystem type is: 58465342
File size of /data/1 is 16384 (4 blocks of 4096 bytes)
 ext:     logical_offset:        physical_offset: length:   expected: flags:
   0:        0..       0:         24..        24:      1:             shared
   1:        1..       1:        100..       100:      1:         25:
   2:        2..       3:         26..        27:      2:        101: last,shared,eof
/data/1: 3 extents found
File size of /data/2 is 0 (0 blocks of 4096 bytes)
/data/2: 0 extents found
`;

test('extents that the listing calls shared are not own', () => {
  expect(sumExtents(readLayout(LISTING))).toEqual({ own: 4096, shared: 3 * 4096, extents: 3 });
  expect(readLayout(LISTING).size).toBe(16_384);
});

test('a block that several files share counts once, and one without a place on its own', () => {
  const extent = (start: number, length: number) => ({ start, length, isShared: false });
  const layouts = [
    [extent(100, 50), extent(0, 10)],
    [extent(120, 50)],
    [extent(130, 10), extent(Number.NaN, 7)],
  ];
  expect(unionBytes(layouts.map((extents) => ({ extents, size: 0 })))).toBe(10 + 70 + 7);
  expect(unionBytes([])).toBe(0);
});

test('what is not exclusive on btrfs is shared', () => {
  const summary =
    '     Total   Exclusive  Set shared  Filename\n   1048576      4096     1044480  /data/base/5\n';
  expect(readBtrfsSummary(summary)).toEqual({ own: 4096, shared: 1_044_480, extents: null });
});

test('elsewhere nothing is measured', async () => {
  expect(await measureFolder('/proc')).toBeNull();
});

const MB = 2 ** 20;

describe.skipIf(xfsHindrance() !== null)('on XFS', () => {
  let disk: XfsMount;
  beforeAll(() => {
    disk = mountXfs(400 * MB);
  });
  afterAll(() => disk?.remove());

  test('a deletion frees the own bytes', async () => {
    const [source, clone] = ['source', 'clone'].map((name) => join(disk.folder, name)) as [string, string];
    for (const folder of [source, clone]) mkdirSync(folder);
    writeFileSync(join(source, '1'), Buffer.alloc(32 * MB, 1));
    copyFileSync(join(source, '1'), join(clone, '1'), constants.COPYFILE_FICLONE_FORCE);
    disk.usedBytes();
    expect(await measureFolder(clone)).toMatchObject({ own: 0, shared: 32 * MB });
    const together = async () =>
      unionBytes((await Promise.all([source, clone].map(measureFolder))).flatMap((one) => one?.layout ?? []));
    expect(await together()).toBe(32 * MB);

    const file = openSync(join(clone, '1'), 'r+');
    for (let at = 0; at < 8; at += 1) writeSync(file, Buffer.alloc(MB, 2), 0, MB, at * 4 * MB);
    closeSync(file);
    const used = disk.usedBytes();
    const { own = 0 } = (await measureFolder(clone)) ?? {};
    expect(own).toBe(8 * MB);
    expect(await together()).toBe(40 * MB);
    rmSync(clone, { recursive: true });
    // XFS frees the blocks of a deleted file in the background.
    await eventually(async () => {
      expect(Math.abs(used - disk.usedBytes() - own) / own).toBeLessThan(0.05);
    });
    expect(await measureFolder(source)).toMatchObject({ own: 32 * MB, shared: 0 });
  });
});
