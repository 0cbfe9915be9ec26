import { execFileSync } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Archive, CopyRefused, emptyData } from '../../../agent/standby/base-copy.ts';

/** On both sides of the ends of blocks. */
const SIZES = [0, 1, 511, 512, 513, 1024, 100_000];
const bytesOf = (size: number) => Buffer.alloc(size, `content of ${size}`);

let folder: string;
let tar: Buffer;

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'branchgate-archive-'));
  const source = join(folder, 'source');
  mkdirSync(join(source, 'base/5'), { recursive: true });
  mkdirSync(join(source, 'pg_notify'));
  for (const size of SIZES) writeFileSync(join(source, `base/5/${size}`), bytesOf(size));
  writeFileSync(join(source, 'postgresql.auto.conf'), 'port = 1');
  symlinkSync('/elsewhere', join(source, 'link'));
  tar = archiveOf('base', 'pg_notify', 'postgresql.auto.conf');
});
afterAll(() => rmSync(folder, { recursive: true }));

const archiveOf = (...names: string[]) =>
  execFileSync('tar', ['--format=ustar', '-C', join(folder, 'source'), '-cf', '-', ...names]);

const NEW_ARCHIVE = Buffer.from('nbase.tar\0\0');
const data = (bytes: Buffer) => Buffer.concat([Buffer.from('d'), bytes]);

/** @param size of the pieces in which it arrives */
function receive(into: string, bytes: Buffer, size: number) {
  mkdirSync(into);
  const archive = new Archive(into);
  archive.take(NEW_ARCHIVE);
  for (let from = 0; from < bytes.length; from += size) archive.take(data(bytes.subarray(from, from + size)));
  return archive;
}

test.each([1, 7, 512, 1000, 65_536])(
  'an archive that arrives in pieces of %i bytes is written as it was',
  (size) => {
    const into = join(folder, `into-${size}`);
    expect(receive(into, tar, size).end()).toEqual({ bytes: tar.length, files: SIZES.length });
    for (const own of SIZES)
      expect(readFileSync(join(into, `base/5/${own}`)).equals(bytesOf(own)), `${own}`).toBe(true);
    expect(existsSync(join(into, 'pg_notify'))).toBe(true);
    // Settings of the primary alone.
    expect(existsSync(join(into, 'postgresql.auto.conf'))).toBe(false);
  },
);

test('an archive that ends too early is no copy', () => {
  const archive = receive(join(folder, 'cut'), tar.subarray(0, tar.length / 2), 4096);
  expect(() => archive.end()).toThrow('ended too early');
});

test.each(['../outside', 'base/../../outside'])('a file named %s is refused', (name) => {
  const header = Buffer.alloc(512);
  header.write(name);
  header.write('0000600\0', 100);
  header.write('00000000000\0', 124);
  header.write('0', 156);
  const into = join(folder, name.replaceAll(/\W/g, '-'));
  expect(() => receive(into, header, 512)).toThrow('outside of its folder');
  expect(existsSync(join(folder, 'outside'))).toBe(false);
});

test('a link is refused, because what follows could be written through it', () => {
  expect(() => receive(join(folder, 'linked'), archiveOf('link'), 512)).toThrow(CopyRefused);
});

test('the data is removed, but not the volume of the WAL and the settings of this host', async () => {
  const data = join(folder, 'data');
  const wal = join(folder, 'wal');
  for (const path of [data, wal, join(data, 'base')]) mkdirSync(path);
  symlinkSync(wal, join(data, 'pg_wal'));
  symlinkSync(wal, join(data, 'other'));
  for (const path of [join(wal, 'segment'), join(data, 'base/1'), join(data, 'postgresql.auto.conf')])
    writeFileSync(path, '');
  await emptyData(data, ['postgresql.auto.conf']);
  expect(readdirSync(data).sort()).toEqual(['pg_wal', 'postgresql.auto.conf']);
  expect(readlinkSync(join(data, 'pg_wal'))).toBe(wal);
  expect(readdirSync(wal)).toEqual([]);
});

test('a primary with tablespaces is refused', () => {
  const archive = receive(join(folder, 'tablespaces'), Buffer.alloc(1024), 512);
  expect(() => archive.take(NEW_ARCHIVE)).toThrow(CopyRefused);
});
