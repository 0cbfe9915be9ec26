import { constants } from 'node:fs';
import { copyFile, link, mkdir, open, readdir, readFile, rm, stat, unlink } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import type { PastFolders } from './folders.ts';

/** The archive of the WAL: a folder that PostgreSQL fills by `archive-wal`, and from which recoveries replay. */

/** Files that PostgreSQL archives: segments, time lines, and notes about backups. */
const ARCHIVED = /^[0-9A-F]{8}(?:[0-9A-F]{16}(?:\.partial|\.[0-9A-F]{8}\.backup)?|\.history)$/;

const NO_ROOM = new Set(['ENOSPC', 'EDQUOT']);

const codeOf = (error: unknown) => (error as NodeJS.ErrnoException).code ?? '';

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
      if (!NO_ROOM.has(codeOf(error))) throw error;
      if (!(await makeRoom())) return false;
    }
}

async function store({ wal }: PastFolders, path: string): Promise<void> {
  const target = join(wal, basename(path));
  // PostgreSQL archives one file at a time, so what a killed call left is replaced.
  const temporary = join(wal, `.${basename(path)}`);
  try {
    await copyFile(path, temporary, constants.COPYFILE_FICLONE);
    await sync(temporary);
    // A link fails where a rename would replace.
    await link(temporary, target).catch(async (error) => {
      if (codeOf(error) !== 'EEXIST' || !(await isSame(path, target))) throw error;
    });
  } finally {
    await unlink(temporary).catch(() => {});
  }
  await sync(dirname(target));
}

/** Names of the archived files. */
export const readArchived = async ({ wal }: PastFolders): Promise<string[]> =>
  (await readdir(wal).catch(() => [] as string[])).filter((name) => ARCHIVED.test(name));

export const isArchived = ({ wal }: PastFolders, name: string): Promise<boolean> =>
  stat(join(wal, name)).then(
    () => true,
    () => false,
  );

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
