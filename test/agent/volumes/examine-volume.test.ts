import { closeSync, constants, copyFileSync, mkdirSync, openSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { examineDatabases, examineVolume } from '../../../agent/volumes/examine-volume.ts';
import { hasReverseMap, hintCowExtents } from '../../../agent/volumes/xfs.ts';
import { mountXfs, type XfsMount, xfsHindrance } from '../../support/stack/xfs.ts';

const MB = 2 ** 20;

describe.skipIf(xfsHindrance() !== null)('on XFS', () => {
  let disk: XfsMount;
  beforeAll(() => {
    disk = mountXfs(400 * MB);
    mkdirSync(join(disk.folder, 'base/5'), { recursive: true });
  });
  afterAll(() => disk?.remove());

  test('advises the hint until it is set', async () => {
    const advice = async () => (await examineVolume(disk.folder)).join('\n');
    expect(await advice()).toContain('cowextsize');
    await hintCowExtents(disk.folder);
    expect(await advice()).not.toContain('cowextsize');
  });

  test.each([
    ['rmapbt=0', false],
    ['rmapbt=1', true],
  ])('made with %s: advice against a reverse map %s', async (option, isMapped) => {
    const made = mountXfs(400 * MB, option);
    try {
      expect(await hasReverseMap(made.folder)).toBe(isMapped);
      expect((await examineVolume(made.folder)).some((text) => text.includes('rmapbt=1'))).toBe(isMapped);
    } finally {
      made.remove();
    }
  });

  test('names databases in many extents, and those without room for a copy', async () => {
    const [file, clone] = ['1', '2'].map((name) => join(disk.folder, 'base/5', name)) as [string, string];
    writeFileSync(file, Buffer.alloc(8 * MB, 1));
    copyFileSync(file, clone, constants.COPYFILE_FICLONE_FORCE);
    const written = openSync(file, 'r+');
    for (let at = 0; at < 16; at += 1) writeSync(written, Buffer.alloc(8192, 2), 0, 8192, at * (MB / 2));
    closeSync(written);
    disk.usedBytes();
    const main = { name: 'db_shop_prod', oid: '5', bytes: 16 * MB };
    expect(await examineDatabases(disk.folder, [main], 2, 10)).toEqual([
      expect.stringMatching(/^db_shop_prod lies in \d\d extents/),
    ]);
    expect(await examineDatabases(disk.folder, [main], 2)).toEqual([]);
    expect(await examineDatabases(disk.folder, [main], 1000)).toEqual([
      expect.stringMatching(/no room for copies of db_shop_prod,.*SNAPSHOT_COPY_ROOM/),
    ]);
    expect(await examineDatabases(disk.folder, [{ ...main, oid: '6' }], 0)).toEqual([]);
  });
});
