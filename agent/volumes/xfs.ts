import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);
const WITHIN = { timeout: 5_000 };

/**
 * In bytes. With XFS's default of 128 KB, writes fragment a database for minutes after its last
 * clone was dropped.
 */
const COW_EXTENT_SIZE = 8_192;

/**
 * Sets the size of copy-on-write extents for new databases, on XFS and as far as the agent may. Never throws.
 */
export async function hintCowExtents(dataDir: string): Promise<void> {
  await run('xfs_io', ['-c', `cowextsize ${COW_EXTENT_SIZE}`, join(dataDir, 'base')], WITHIN).catch(() => {});
}

/** Whether new databases get the hint; null where it does not exist, or xfs_io is not installed. */
export async function hasCowHint(dataDir: string): Promise<boolean | null> {
  try {
    const { stdout } = await run('xfs_io', ['-r', '-c', 'cowextsize', join(dataDir, 'base')], WITHIN);
    const size = /^\[(\d+)\]/.exec(stdout)?.[1];
    return size === undefined ? null : Number(size) === COW_EXTENT_SIZE;
  } catch {
    return null;
  }
}

/**
 * Whether the volume keeps a reverse map of its blocks, which triples the time of a clone; null if it is not
 * XFS.
 */
export async function hasReverseMap(dataDir: string): Promise<boolean | null> {
  try {
    const { stdout } = await run('xfs_info', [dataDir], WITHIN);
    const value = /\brmapbt=([01])\b/.exec(stdout)?.[1];
    return value === undefined ? null : value === '1';
  } catch {
    return null;
  }
}
