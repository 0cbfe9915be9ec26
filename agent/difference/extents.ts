import { execFile } from 'node:child_process';
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

/**
 * Blocks of a table from the first number up to, and without, the second. Ordered, and none touches the next.
 */
export type BlockRanges = readonly (readonly [number, number])[];

/** No table has more blocks. */
export const BLOCKS_MAX = 0xfffffffe;

/** Sorts ranges and joins those that touch. */
export function joined(ranges: BlockRanges): BlockRanges {
  const result: [number, number][] = [];
  for (const [from, to] of ranges.toSorted(([a], [b]) => a - b)) {
    const last = result.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else if (from < to) result.push([from, to]);
  }
  return result;
}

/** The blocks of `[0, end)` that are in none of the ranges. */
export function without(ranges: BlockRanges, end: number): BlockRanges {
  const result: [number, number][] = [];
  let at = 0;
  for (const [from, to] of ranges) {
    if (from > at) result.push([at, Math.min(from, end)]);
    at = Math.max(at, to);
  }
  if (at < end) result.push([at, end]);
  return result.filter(([from, to]) => from < to);
}

const run = promisify(execFile);

/** The listing is held in memory as text, and then as extents. */
const OUTPUT_MAX = 16 * 2 ** 20;
/** Bound for one database. */
const EXTENTS_MAX = 200_000;
const FILES_AT_ONCE = 100;
const BLOCK_BYTES = 8_192;
/** PostgreSQL begins another file of a table after this size. */
const SEGMENT_BLOCKS = 131_072;

/** Bytes `[from, to)` of a file that are at the place `at` of the disk. */
interface Extent {
  from: number;
  to: number;
  at: number;
}

const EXTENT = /^\s*\d+:\s+(\d+)\.\.\s*\d+:\s+(\d+)\.\.\s*\d+:\s+(\d+):(.*)$/;
const NAME = /^File size of (.+) is \d+ \(\d+ blocks? of (\d+) bytes\)$/;
/** Extents without a place of their own on the disk, or with other content there. */
const UNPLACED =
  /\b(unknown|unknown_loc|delalloc|encoded|encrypted|not_aligned|inline|tail_packed|unwritten)\b/;

/** The shared extents of each file that `filefrag -v` lists. */
export function sharedExtents(listing: string): Map<string, Extent[]> {
  const files = new Map<string, Extent[]>();
  let extents: Extent[] = [];
  let unit = 0;
  for (const line of listing.split('\n')) {
    const [, file, size] = NAME.exec(line) ?? [];
    if (file !== undefined) {
      extents = [];
      unit = Number(size);
      files.set(file, extents);
    }
    const [, logical, physical, length, flags = ''] = EXTENT.exec(line) ?? [];
    if (logical === undefined || !/\bshared\b/.test(flags) || UNPLACED.test(flags)) continue;
    const from = Number(logical) * unit;
    extents.push({ from, to: from + Number(length) * unit, at: Number(physical) * unit });
  }
  return files;
}

/** The bytes that two files have at the same place of the disk. Both lists are ordered. */
export function sameBytes(first: readonly Extent[], second: readonly Extent[]): [number, number][] {
  const result: [number, number][] = [];
  let at = 0;
  for (const a of first) {
    while (at < second.length && (second[at] as Extent).to <= a.from) at += 1;
    for (let next = at; next < second.length && (second[next] as Extent).from < a.to; next += 1) {
      const b = second[next] as Extent;
      if (a.at - a.from !== b.at - b.from) continue;
      result.push([Math.max(a.from, b.from), Math.min(a.to, b.to)]);
    }
  }
  return result;
}

/** The blocks that lie in these bytes as a whole. */
const wholeBlocks = (bytes: BlockRanges): BlockRanges =>
  joined(bytes)
    .map(([from, to]) => [Math.ceil(from / BLOCK_BYTES), Math.floor(to / BLOCK_BYTES)] as const)
    .filter(([from, to]) => from < to);

const both = (first: BlockRanges, second: BlockRanges, end: number): BlockRanges =>
  without(joined([...without(first, end), ...without(second, end)]), end);

/**
 * By relfilenode, the blocks of two databases that are not at the same place of the disk: one place holds the
 * same rows. The second database is read between two readings of the first, because a place that one has left
 * can be given to the other in between.
 * @param base folder of all databases
 * @param relations relfilenodes that both have; one without files in these folders gets no entry
 * @param signal ends the listing
 * @throws Error if the files are too fragmented, or cannot be listed
 */
export async function movedBlocks(
  base: string,
  first: string,
  second: string,
  relations: readonly string[],
  signal: AbortSignal,
): Promise<Map<string, BlockRanges>> {
  const segments: { relation: string; segment: number; name: string; blocks: number }[] = [];
  for (const relation of relations) {
    for (let segment = 0; ; segment += 1) {
      const name = segment === 0 ? relation : `${relation}.${segment}`;
      const sizes = await Promise.all([first, second].map((oid) => sizeOf(join(base, oid, name))));
      const bytes = Math.max(...sizes);
      if (bytes < 0) break;
      segments.push({ relation, segment, name, blocks: Math.ceil(bytes / BLOCK_BYTES) });
    }
  }
  const names = segments.map(({ name }) => name);
  const list = (oid: string) => listExtents(join(base, oid), names, signal);
  const before = await list(first);
  const other = await list(second);
  const after = await list(first);
  const moved = new Map<string, (readonly [number, number])[]>();
  for (const { relation, segment, name, blocks } of segments) {
    const theirs = other.get(name) ?? [];
    const [early, late] = [before, after].map((own) => wholeBlocks(sameBytes(own.get(name) ?? [], theirs)));
    const same = both(early ?? [], late ?? [], blocks);
    const start = segment * SEGMENT_BLOCKS;
    const ranges = without(same, blocks).map(([from, to]) => [from + start, to + start] as const);
    moved.set(relation, [...(moved.get(relation) ?? []), ...ranges]);
  }
  return new Map([...moved].map(([relation, ranges]) => [relation, joined(ranges)]));
}

const sizeOf = (file: string) =>
  stat(file).then(
    ({ size }) => size,
    () => -1,
  );

async function listExtents(
  folder: string,
  names: readonly string[],
  signal: AbortSignal,
): Promise<Map<string, Extent[]>> {
  const found = new Map<string, Extent[]>();
  let count = 0;
  for (let at = 0; at < names.length; at += FILES_AT_ONCE) {
    const files = names.slice(at, at + FILES_AT_ONCE);
    const options = { cwd: folder, signal, maxBuffer: OUTPUT_MAX };
    // A file that only the other database has is an error of the command, but the others are listed.
    const { stdout } = await run('filefrag', ['-s', '-v', ...files], options).catch((error) =>
      typeof error.code === 'number' ? error : Promise.reject(error),
    );
    for (const [file, extents] of sharedExtents(stdout)) {
      found.set(file, extents);
      count += extents.length;
    }
    if (count > EXTENTS_MAX) throw new Error('the files of a database have too many extents');
  }
  return found;
}
