import { readFileSync, statfsSync } from 'node:fs';
import { freemem } from 'node:os';

const FOLDER = '/dev/shm';
const GIB = 1024 ** 3;
/** A run has 3 GiB of files at most, and its processes use as much. */
const NEEDED_BYTES = 8 * GIB;

/**
 * Puts the temporary files of the tests into memory, where a machine has enough of it. On ext4 whoever creates a file
 * first searches the inodes that were deleted in the last minutes. A test that drops databases leaves thousands of them.
 * A `TMPDIR` of the caller stays.
 */
export function keepTemporaryFilesInMemory(): void {
  if (process.env.TMPDIR === undefined && isUsable()) process.env.TMPDIR = FOLDER;
}

function isUsable(): boolean {
  // Programs are started from it.
  if (!/^\S+ \/dev\/shm tmpfs (?!\S*\bnoexec\b)/m.test(mounts())) return false;
  const { bavail, bsize } = statfsSync(FOLDER);
  return Math.min(bavail * bsize, freemem()) >= NEEDED_BYTES;
}

function mounts(): string {
  try {
    return readFileSync('/proc/self/mounts', 'utf8');
  } catch {
    return '';
  }
}
