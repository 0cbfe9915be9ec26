import { execFile } from 'node:child_process';
import { readdir, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);

const WITHIN_MS = 60_000;

/** Below the length of a command line, also with long paths. */
const FILES_AT_ONCE = 500;

const OUTPUT_MAX = 256 * 2 ** 20;

/** What a database has for itself, and what it shares with others, in bytes. */
export interface DiskBytes {
  own: number;
  shared: number;
  /** Null where they are not counted. */
  extents: number | null;
}

/** Where the blocks of a database lie, and the size of its files. */
export interface Layout {
  extents: { start: number; length: number; isShared: boolean }[];
  size: number;
}

interface FolderBytes extends DiskBytes {
  /** Null where the file system reports only sums. */
  layout: Layout | null;
}

type Measure = (folder: string) => Promise<FolderBytes>;

const EXTENT = /^\s*\d+:\s+\d+\.\.\s*\d+:\s+(\d+)\.\.\s*\d+:\s+(\d+):(.*)$/;

const FILE = /^File size of .* is (\d+) \(\d+ blocks? of (\d+) bytes\)$/;

/** The extents that `filefrag -v` lists, in bytes. */
export function readLayout(listing: string): Layout {
  const layout: Layout = { extents: [], size: 0 };
  let blockSize = 0;
  for (const line of listing.split('\n')) {
    const [, size, ofBlock] = FILE.exec(line) ?? [];
    if (size !== undefined) {
      layout.size += Number(size);
      blockSize = Number(ofBlock);
    }
    const [, start, length, flags = ''] = EXTENT.exec(line) ?? [];
    if (start === undefined) continue;
    layout.extents.push({
      // What is not written yet has no place.
      start: /\bunknown/.test(flags) ? Number.NaN : Number(start) * blockSize,
      length: Number(length) * blockSize,
      isShared: /\bshared\b/.test(flags),
    });
  }
  return layout;
}

export function sumExtents({ extents }: Layout): DiskBytes {
  const sum = { own: 0, shared: 0, extents: extents.length };
  for (const { length, isShared } of extents) sum[isShared ? 'shared' : 'own'] += length;
  return sum;
}

/** What they take together; a block that several share counts once. */
export function unionBytes(layouts: readonly Layout[]): number {
  const extents = layouts.flatMap((layout) => layout.extents);
  const placed = extents
    .filter(({ start }) => !Number.isNaN(start))
    .sort((one, other) => one.start - other.start);
  let end = 0;
  let bytes = extents.filter(({ start }) => Number.isNaN(start)).reduce((sum, { length }) => sum + length, 0);
  for (const { start, length } of placed) {
    bytes += Math.max(0, start + length - Math.max(start, end));
    end = Math.max(end, start + length);
  }
  return bytes;
}

/** The total of `btrfs filesystem du --summarize --raw`: all bytes, and those of this folder alone. */
export function readBtrfsSummary(summary: string): DiskBytes {
  const [, total = 0, own = 0] = (/^\s*(\d+)\s+(\d+)\s/m.exec(summary) ?? []).map(Number);
  return { own, shared: total - own, extents: null };
}

async function measureExtents(folder: string): Promise<FolderBytes> {
  const files = (await readdir(folder)).map((name) => join(folder, name));
  const layout: Layout = { extents: [], size: 0 };
  for (let at = 0; at < files.length; at += FILES_AT_ONCE) {
    const options = { timeout: WITHIN_MS, maxBuffer: OUTPUT_MAX };
    // A file that is removed meanwhile is an error of the command, but the others are listed.
    const { stdout } = await run('filefrag', ['-v', ...files.slice(at, at + FILES_AT_ONCE)], options).catch(
      (error) => (typeof error.code === 'number' ? error : Promise.reject(error)),
    );
    const { extents, size } = readLayout(stdout);
    layout.extents = layout.extents.concat(extents);
    layout.size += size;
  }
  return { ...sumExtents(layout), layout };
}

const measureBtrfs: Measure = async (folder) => {
  const command = ['filesystem', 'du', '--summarize', '--raw', folder];
  const { stdout } = await run('btrfs', command, { timeout: WITHIN_MS });
  return { ...readBtrfsSummary(stdout), layout: null };
};

/** Types of file systems as `statfs` reports them (`linux/magic.h`). */
export const XFS = 0x58465342;
export const BTRFS = 0x9123683e;

/** On other file systems nothing shares blocks, or nothing reports it. */
const MEASURES: Record<number, Measure> = { [XFS]: measureExtents, [BTRFS]: measureBtrfs };

/** What the files of a folder take of the disk; null where it cannot be measured. */
export async function measureFolder(folder: string): Promise<FolderBytes | null> {
  return (await MEASURES[(await statfs(folder)).type]?.(folder)) ?? null;
}
