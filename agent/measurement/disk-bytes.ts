import { execFile } from 'node:child_process';
import { readdir, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { ProjectMeasurement } from '../../shared/measurement.ts';
import type { Host } from '../host.ts';
import { repeat } from '../repeat.ts';
import { SNAPSHOT_NAME } from '../snapshots/snapshot-databases.ts';
import { TroubleLog } from '../trouble-log.ts';
import type { Source } from './source.ts';

const run = promisify(execFile);

const LOOK_EVERY_MS = 5_000;
const MEASURE_EVERY_MS = 600_000;
const WITHIN_MS = 60_000;
/** Below the length of a command line, also with long paths. */
const FILES_AT_ONCE = 500;
const OUTPUT_MAX = 256 * 2 ** 20;

/** What a database has for itself, and what it shares with others, in bytes. */
interface DiskBytes {
  own: number;
  shared: number;
  /** Null where they are not counted. */
  extents: number | null;
}

/** Where the blocks of a database lie, and the size of its files. */
interface Layout {
  extents: { start: number; length: number; isShared: boolean }[];
  size: number;
}

interface FolderBytes extends DiskBytes {
  /** Null where the file system tells only sums. */
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

/** By the magic number of the file system; elsewhere nothing shares blocks, or nothing reports it. */
const MEASURES: Record<number, Measure> = { 1481003842: measureExtents, 2435016766: measureBtrfs };

/** What the files of a folder take of the disk; null where it cannot be measured. */
export async function measureFolder(folder: string): Promise<FolderBytes | null> {
  return (await MEASURES[(await statfs(folder)).type]?.(folder)) ?? null;
}

interface Subject {
  /** Of a branch or a snapshot. */
  id: string;
  project_id: string;
  oid: string;
  is_branch: boolean;
}

const SUBJECTS = `
  SELECT branch_id AS id, project_id, pg_database.oid::text, true AS is_branch FROM branch JOIN pg_database ON datname = database
  UNION ALL
  SELECT snapshot_id, project_id, pg_database.oid::text, false FROM snapshot
  JOIN pg_database ON datname = ${SNAPSHOT_NAME} AND datconnlimit <> -2
  ORDER BY 1`;

type Physical = NonNullable<ProjectMeasurement['physical']>;

/**
 * Measures what each branch and snapshot takes of the disk: every 10 minutes, and its project's after each clone. That
 * lists every file, so the loop waits until a project has had no further clone for a while.
 */
export class DiskUsage {
  readonly #host: Host;
  #known = new Map<string, Subject & DiskBytes>();
  /** By project, with the time of the measurement. */
  #physical = new Map<string, Physical & { at: number }>();
  /** Oids that the last call saw. */
  #seen: ReadonlySet<string> = new Set();
  #measuredAt = Number.NEGATIVE_INFINITY;

  constructor(host: Host) {
    this.#host = host;
  }

  /** As last measured; without what cannot be measured. */
  of(projectId: string): Pick<ProjectMeasurement, 'disk' | 'physical'> {
    const found = [...this.#known.values()].filter(({ project_id }) => project_id === projectId);
    const disk = found.map(({ id, own, shared }) => ({ id, own_bytes: own, shared_bytes: shared }));
    const physical = this.#physical.get(projectId);
    const isRecent = physical && performance.now() - physical.at < 2 * MEASURE_EVERY_MS;
    return {
      ...(disk.length > 0 && { disk }),
      ...(isRecent && { physical: { bytes: physical.bytes, sizes: physical.sizes } }),
    };
  }

  /** The largest branch or snapshot as last measured; null where none can be measured. */
  largest(): Source | null {
    const sources = [...this.#known.values()].map(({ own, shared, extents }) => ({
      bytes: own + shared,
      extents,
    }));
    return sources.reduce<Source | null>(
      (largest, source) => (largest && largest.bytes >= source.bytes ? largest : source),
      null,
    );
  }

  /** @returns how many databases were measured @param settled leaves out clones that the last call did not see */
  async measure({ settled }: { settled: boolean } = { settled: false }): Promise<number> {
    const { rows } = await this.#host.postgres.query<Subject>(SUBJECTS);
    const isRound = performance.now() - this.#measuredAt > MEASURE_EVERY_MS;
    if (isRound) this.#measuredAt = performance.now();
    // A new clone takes part of its source's own bytes.
    const changed = new Set(
      rows.flatMap(({ oid, project_id }) => (isRound || !this.#known.has(oid) ? [project_id] : [])),
    );
    const seen = this.#seen;
    this.#seen = new Set(rows.map(({ oid }) => oid));
    if (settled && !isRound)
      for (const { oid, project_id } of rows) if (!seen.has(oid)) changed.delete(project_id);
    const now = new Map<string, Subject & DiskBytes>();
    let measured = 0;
    for (const [projectId, subjects] of Map.groupBy(rows, ({ project_id }) => project_id)) {
      if (!changed.has(projectId)) {
        for (const { oid } of subjects) {
          const known = this.#known.get(oid);
          if (known) now.set(oid, known);
        }
        continue;
      }
      measured += subjects.length;
      for (const [oid, bytes] of await this.#measureProject(projectId, subjects)) now.set(oid, bytes);
    }
    this.#known = now;
    for (const projectId of this.#physical.keys())
      if (!rows.some(({ project_id }) => project_id === projectId)) this.#physical.delete(projectId);
    return measured;
  }

  async #measureProject(
    projectId: string,
    subjects: readonly Subject[],
  ): Promise<Map<string, Subject & DiskBytes>> {
    const { settings, cloneMethod } = this.#host;
    const found = new Map<string, Subject & DiskBytes>();
    const layouts = new Map<string, Layout>();
    for (const subject of subjects) {
      const bytes = await measureFolder(join(settings.PGDATA_DIR, 'base', subject.oid));
      if (!bytes) continue;
      const { own, shared, extents } = bytes;
      found.set(subject.oid, { ...subject, own, shared, extents });
      if (subject.is_branch && bytes.layout) layouts.set(subject.id, bytes.layout);
    }
    const isWhole = layouts.size === subjects.filter(({ is_branch }) => is_branch).length;
    if (isWhole && layouts.size > 0 && cloneMethod === 'reflink')
      this.#physical.set(projectId, {
        bytes: unionBytes([...layouts.values()]),
        sizes: Object.fromEntries([...layouts].map(([id, { size }]) => [id, size])),
        at: performance.now(),
      });
    return found;
  }

  /** Never throws. */
  async runLoop(signal: AbortSignal): Promise<void> {
    const troubles = new TroubleLog(this.#host.log);
    const look = () =>
      this.measure({ settled: true }).then(
        () => troubles.clearAll(),
        (error) => troubles.report('disk.unmeasured', 'bytes', error),
      );
    await repeat(look, LOOK_EVERY_MS, signal);
  }
}
