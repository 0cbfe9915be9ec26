import { execFile } from 'node:child_process';
import { readdir, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { ProjectMeasurement } from '../../shared/measurement.ts';
import type { Host } from '../host.ts';
import { repeat } from '../repeat.ts';
import { TroubleLog } from '../trouble-log.ts';

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

/** A database that can be cloned. */
export interface Source {
  bytes: number;
  extents: number | null;
}

type Measure = (folder: string) => Promise<DiskBytes>;

const EXTENT = /^\s*\d+:\s+\d+\.\.\s*\d+:\s+\d+\.\.\s*\d+:\s+(\d+):(.*)$/;

/** Adds up the extents that `filefrag -v` lists. */
export function sumExtents(listing: string): DiskBytes & { extents: number } {
  const sum = { own: 0, shared: 0, extents: 0 };
  let blockSize = 0;
  for (const line of listing.split('\n')) {
    const size = /\(\d+ blocks? of (\d+) bytes\)$/.exec(line)?.[1];
    if (size !== undefined) blockSize = Number(size);
    const [, length, flags = ''] = EXTENT.exec(line) ?? [];
    if (length === undefined) continue;
    sum.extents += 1;
    sum[/\bshared\b/.test(flags) ? 'shared' : 'own'] += Number(length) * blockSize;
  }
  return sum;
}

/** The total of `btrfs filesystem du --summarize --raw`: all bytes, and those of this folder alone. */
export function readBtrfsSummary(summary: string): DiskBytes {
  const [, total = 0, own = 0] = (/^\s*(\d+)\s+(\d+)\s/m.exec(summary) ?? []).map(Number);
  return { own, shared: total - own, extents: null };
}

async function measureExtents(folder: string): Promise<DiskBytes> {
  const files = (await readdir(folder)).map((name) => join(folder, name));
  const sum = { own: 0, shared: 0, extents: 0 };
  for (let at = 0; at < files.length; at += FILES_AT_ONCE) {
    const options = { timeout: WITHIN_MS, maxBuffer: OUTPUT_MAX };
    // A file that is removed meanwhile is an error of the command, but the others are listed.
    const { stdout } = await run('filefrag', ['-v', ...files.slice(at, at + FILES_AT_ONCE)], options).catch(
      (error) => (typeof error.code === 'number' ? error : Promise.reject(error)),
    );
    const { own, shared, extents } = sumExtents(stdout);
    sum.own += own;
    sum.shared += shared;
    sum.extents += extents;
  }
  return sum;
}

const measureBtrfs: Measure = async (folder) =>
  readBtrfsSummary(
    (await run('btrfs', ['filesystem', 'du', '--summarize', '--raw', folder], { timeout: WITHIN_MS })).stdout,
  );

/** By the magic number of the file system; elsewhere nothing shares blocks, or nothing reports it. */
const MEASURES: Record<number, Measure> = { 1481003842: measureExtents, 2435016766: measureBtrfs };

/** What the files of a folder take of the disk; null where it cannot be measured. */
export async function measureFolder(folder: string): Promise<DiskBytes | null> {
  return (await MEASURES[(await statfs(folder)).type]?.(folder)) ?? null;
}

interface Subject {
  /** Of a branch or a snapshot. */
  id: string;
  project_id: string;
  oid: string;
}

const SUBJECTS = `
  SELECT branch_id AS id, project_id, pg_database.oid::text FROM branch JOIN pg_database ON datname = database
  UNION ALL
  SELECT snapshot_id, project_id, pg_database.oid::text FROM snapshot
  JOIN pg_database ON datname = 'bgsnap_' || replace(snapshot_id::text, '-', '') AND datconnlimit <> -2
  ORDER BY 1`;

/** Measures what each branch and snapshot takes of the disk: every 10 minutes, and its project's after each clone. */
export class DiskUsage {
  readonly #host: Host;
  #known = new Map<string, Subject & DiskBytes>();
  #measuredAt = Number.NEGATIVE_INFINITY;

  constructor(host: Host) {
    this.#host = host;
  }

  /** As last measured; undefined where it cannot be measured. */
  of(projectId: string): ProjectMeasurement['disk'] {
    const found = [...this.#known.values()].filter(({ project_id }) => project_id === projectId);
    return found.length === 0
      ? undefined
      : found.map(({ id, own, shared }) => ({ id, own_bytes: own, shared_bytes: shared }));
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

  /** @returns how many databases were measured */
  async measure(): Promise<number> {
    const { settings, postgres } = this.#host;
    const { rows } = await postgres.query<Subject>(SUBJECTS);
    const isRound = performance.now() - this.#measuredAt > MEASURE_EVERY_MS;
    if (isRound) this.#measuredAt = performance.now();
    // A new clone takes part of its source's own bytes.
    const changed = new Set(
      rows.flatMap(({ oid, project_id }) => (isRound || !this.#known.has(oid) ? [project_id] : [])),
    );
    const due = rows.filter(({ project_id }) => changed.has(project_id));
    const now = new Map<string, Subject & DiskBytes>();
    for (const subject of rows) {
      const known = this.#known.get(subject.oid);
      const bytes = changed.has(subject.project_id)
        ? await measureFolder(join(settings.PGDATA_DIR, 'base', subject.oid))
        : known;
      if (bytes)
        now.set(subject.oid, { ...subject, own: bytes.own, shared: bytes.shared, extents: bytes.extents });
    }
    this.#known = now;
    return due.length;
  }

  /** Never throws. */
  async runLoop(signal: AbortSignal): Promise<void> {
    const troubles = new TroubleLog(this.#host.log);
    const look = () =>
      this.measure().then(
        () => troubles.clearAll(),
        (error) => troubles.report('disk.unmeasured', 'bytes', error),
      );
    await repeat(look, LOOK_EVERY_MS, signal);
  }
}
