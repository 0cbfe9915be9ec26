import { execFile } from 'node:child_process';
import { readdir, readFile, rename, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { z } from 'zod';
import { archivedBytes, dropArchived } from './archive.ts';
import type { PastFolders } from './folders.ts';
import { firstGap, segmentNumber } from './segments.ts';

/** The base copies of a host: its data at some time, from which PostgreSQL replays the archived WAL. */

const run = promisify(execFile);

/** A time of the host's clock, with microseconds. */
const Time = z.iso.datetime();

/** `copy.json` of a base copy, which is written when the copy is complete. */
export const BaseCopy = z.object({
  /** The copy is consistent from here on. */
  ended_at: Time,
  /** The first segment of the WAL that it needs. */
  segment: z.string(),
  segment_bytes: z.int(),
  /** The project of each database of a project, by its OID. */
  projects: z.record(z.string(), z.uuid()),
  /** The pages that a transaction changes first after a checkpoint are in the WAL as a whole, those of visibility too. */
  logs_pages: z.boolean(),
  /** OIDs of databases whose files share no blocks with those of the server, although they could. */
  apart: z.array(z.string()).default([]),
});
export type BaseCopy = z.output<typeof BaseCopy> & { name: string };

export const RECORD_FILE = 'copy.json';
/** A file whose time is that of the last copy that was dropped for want of room. */
export const SHORTENED = 'shortened';
const NAME = /^base-\d+$/;

/** The data of a base copy, in the form of PGDATA_DIR. */
export const dataOf = ({ bases }: PastFolders, name: string): string => join(bases, name, 'data');

/** The complete base copies, oldest first. */
export async function readBaseCopies({ bases }: PastFolders): Promise<BaseCopy[]> {
  const names = await readdir(bases).catch(() => [] as string[]);
  const read = await Promise.all(
    names
      .filter((name) => NAME.test(name))
      .map(async (name): Promise<BaseCopy[]> => {
        try {
          const record = JSON.parse(await readFile(join(bases, name, RECORD_FILE), 'utf8'));
          return [{ ...BaseCopy.parse(record), name }];
        } catch {
          // A drop that was killed has left it.
          return [];
        }
      }),
  );
  return read.flat().sort((one, other) => (one.ended_at < other.ended_at ? -1 : 1));
}

/** The copies from which every later segment is there, oldest first. Earlier ones lead to no time of the window. */
export function usableCopies(copies: readonly BaseCopy[], archived: readonly string[]): BaseCopy[] {
  return copies.filter(({ segment, segment_bytes }) => {
    const numbers = archived.flatMap((name) => segmentNumber(name, segment_bytes) ?? []);
    const first = segmentNumber(segment, segment_bytes);
    return first !== null && firstGap(new Set(numbers), first) === null;
  });
}

/**
 * Removes a folder with as many files as a cluster. The first step makes it unusable, so that a kill leaves nothing that
 * looks complete.
 */
export async function removeFolder(path: string): Promise<void> {
  const gone = path.endsWith('.gone') ? path : `${path}.gone`;
  if (gone !== path) await rename(path, gone).catch(() => {});
  await run('/usr/bin/nice', ['-n', '10', '/bin/rm', '-rf', '--', gone]);
}

/** Removes what kills have left. Nobody else may be making a copy. */
export async function removeUnfinished(folders: PastFolders): Promise<void> {
  const complete = new Set((await readBaseCopies(folders)).map(({ name }) => name));
  for (const name of await readdir(folders.bases).catch(() => [] as string[]))
    if (!complete.has(name)) await removeFolder(join(folders.bases, name));
}

/** Drops the WAL that none of the copies needs. */
export function dropUnneeded(folders: PastFolders, [oldest]: readonly BaseCopy[]): Promise<void> {
  if (!oldest) return dropArchived(folders, () => false);
  const { segment, segment_bytes } = oldest;
  const first = segmentNumber(segment, segment_bytes) ?? 0;
  return dropArchived(folders, (name) => (segmentNumber(name, segment_bytes) ?? first) >= first);
}

/**
 * Drops the oldest base copy with the WAL that only it needs, for want of room.
 * @returns false if that would leave none
 */
export async function dropOldest(folders: PastFolders): Promise<boolean> {
  const [oldest, ...others] = await readBaseCopies(folders);
  if (!oldest || others.length === 0) return false;
  await removeFolder(join(folders.bases, oldest.name));
  await dropUnneeded(folders, others);
  await writeFile(join(folders.root, SHORTENED), '', { mode: 0o600 }).catch(() => {});
  return true;
}

/**
 * Bytes that base copies keep from the disk, at most about: of a volume with shared blocks, what the databases have not any
 * more, which are files that only copies have, and former contents of pages. A page that changes is in the WAL before.
 * @param isShared whether the copies share blocks with the data
 */
export async function keptBytes(folders: PastFolders, dataDir: string, isShared: boolean): Promise<number> {
  const copies = await readBaseCopies(folders);
  const only = new Map<string, number>();
  let own = 0;
  for (const { name, apart } of copies) {
    const base = join(dataOf(folders, name), 'base');
    for (const database of await readdir(base).catch(() => [] as string[])) {
      const present = new Set(await readdir(join(dataDir, 'base', database)).catch(() => [] as string[]));
      for (const file of await readdir(join(base, database)).catch(() => [] as string[])) {
        const isApart = !isShared || apart.includes(database);
        if (!isApart && present.has(file)) continue;
        const { size } = await stat(join(base, database, file)).catch(() => ({ size: 0 }));
        if (isApart) own += size;
        else only.set(`${database}/${file}`, Math.max(size, only.get(`${database}/${file}`) ?? 0));
      }
    }
  }
  if (!isShared) return own;
  const gone = [...only.values()].reduce((sum, size) => sum + size, 0);
  return own + gone + (copies.length > 0 ? await archivedBytes(folders) : 0);
}
