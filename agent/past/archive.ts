import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, open, readdir, readFile, rm, stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';
import { ARCHIVE_WAL, STORE_WAL } from '../servers/archive-command.ts';
import type { PastFolders } from './folders.ts';
import { isSegment } from './segments.ts';

/** The archive of the WAL: a folder that PostgreSQL fills by `archive-wal`, and from which recoveries replay. */

const run = promisify(execFile);

/** Files that PostgreSQL archives: segments, time lines, and notes about backups. */
const ARCHIVED = /^[0-9A-F]{8}(?:[0-9A-F]{16}(?:\.partial|\.[0-9A-F]{8}\.backup)?|\.history)$/;

/** Texts of ENOSPC and EDQUOT. */
const NO_ROOM = /No space left on device|Disk quota exceeded/;

async function sync(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

async function isSame(one: string, other: string): Promise<boolean> {
  const [a, b] = await Promise.all([readFile(one), readFile(other)]);
  return a.equals(b);
}

/**
 * Stores a file of the WAL durably. One of the name is never replaced. A file for which a full volume has no room is left
 * out: recoveries then begin at a later time, and PostgreSQL keeps running.
 * @param makeRoom drops what is oldest; false: nothing is left to drop
 * @returns false if the file was left out
 * @throws Error if another file of the name is there, or the disk fails, so that PostgreSQL tries again
 */
export async function archiveFile(
  folders: PastFolders,
  path: string,
  makeRoom: () => Promise<boolean>,
): Promise<boolean> {
  const name = basename(path);
  if (!ARCHIVED.test(name)) throw new Error(`${name} is no file of the WAL`);
  await mkdir(folders.wal, { recursive: true, mode: 0o700 });
  for (;;)
    try {
      await store(folders, path);
      return true;
    } catch (error) {
      if (!NO_ROOM.test((error as { stderr?: string }).stderr ?? '')) throw error;
      if (!(await makeRoom())) return false;
    }
}

async function store({ root, wal }: PastFolders, path: string): Promise<void> {
  const name = basename(path);
  const stored = join(wal, name);
  if (existsSync(stored)) {
    if (!(await isSame(path, stored))) throw new Error(`another ${name} is in the archive`);
    // A call that was killed before its last step has stored the file, but not durably its name.
    await sync(wal);
    return;
  }
  try {
    await run('/bin/sh', ['-ec', STORE_WAL, ARCHIVE_WAL, root, name, path], {
      env: { ...process.env, LC_ALL: 'C' },
    });
  } finally {
    // PostgreSQL archives one file at a time, so this is what a failed call has left.
    await rm(join(wal, `.${name}`), { force: true });
  }
}

/** Names of the archived files. */
export const readArchived = async ({ wal }: PastFolders): Promise<string[]> =>
  (await readdir(wal).catch(() => [] as string[])).filter((name) => ARCHIVED.test(name));

export const isArchived = ({ wal }: PastFolders, name: string): boolean => existsSync(join(wal, name));

/**
 * Every commit before a time is in the segments up to this one, unless the archive lags behind.
 * @param from the first segment that is looked at
 * @param time Unix milliseconds
 * @returns null: no segment was archived since then
 */
export async function firstArchivedSince(
  folders: PastFolders,
  from: string,
  time: number,
): Promise<string | null> {
  const names = (await readArchived(folders)).filter((name) => isSegment(name) && name >= from);
  for (const name of names.sort()) {
    const { mtimeMs } = await stat(join(folders.wal, name)).catch(() => ({ mtimeMs: 0 }));
    if (mtimeMs >= time) return name;
  }
  return null;
}

/** Bytes of the archived files, of which each is looked at. */
export async function archivedBytes(folders: PastFolders): Promise<number> {
  const sizes = await Promise.all(
    (await readArchived(folders)).map((name) =>
      stat(join(folders.wal, name)).then(
        ({ size }) => size,
        () => 0,
      ),
    ),
  );
  return sizes.reduce((sum, size) => sum + size, 0);
}

/** Drops segments, and notes about backups, that no base copy needs. Time lines stay. */
export async function dropArchived(folders: PastFolders, isNeeded: (name: string) => boolean): Promise<void> {
  for (const name of await readArchived(folders))
    if (!name.endsWith('.history') && !isNeeded(name.slice(0, 24)))
      await rm(join(folders.wal, name), { force: true });
}
