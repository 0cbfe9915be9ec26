import { chmodSync, existsSync, mkdirSync, readFileSync, rmSync, statfsSync } from 'node:fs';
import { freemem } from 'node:os';
import { cleanUpKilledRuns, folderOfRun } from './killed-runs.ts';

const MEMORY = '/dev/shm';
const MOUNTS = '/proc/self/mounts';
const GIB = 1024 ** 3;
/** A run has 3 GiB of files at most, and its processes use as much. */
const NEEDED_BYTES = 8 * GIB;

/**
 * Puts the temporary files of a test run into memory, where a machine has enough of it: on ext4, the creation
 * of a file first searches the inodes that were deleted in the last minutes, and a test that drops databases
 * leaves thousands. They go with the run; if it is killed, the next one removes them with its processes. A
 * `TMPDIR` of the caller stays.
 */
export function keepTemporaryFilesInMemory(): void {
  if (process.env.TMPDIR !== undefined || !isUsable()) return;
  cleanUpKilledRuns(MEMORY);
  const folder = folderOfRun(MEMORY, process.pid);
  mkdirSync(folder);
  // The servers run as another user.
  chmodSync(folder, 0o755);
  process.env.TMPDIR = folder;
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
}

function isUsable(): boolean {
  // Programs are started from it.
  const isSuitable = /^\S+ \/dev\/shm tmpfs (?!\S*\bnoexec\b)/m;
  if (!(existsSync(MOUNTS) && isSuitable.test(readFileSync(MOUNTS, 'utf8')))) return false;
  const { bavail, bsize } = statfsSync(MEMORY);
  return Math.min(bavail * bsize, freemem()) >= NEEDED_BYTES;
}
