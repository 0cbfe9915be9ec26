import { existsSync, mkdirSync, renameSync, rmSync } from 'node:fs';
import { dirname } from 'node:path';

/**
 * Makes a file or folder unless it is there. Processes that need it at the same time may each make it; the first one to
 * finish provides it.
 * @param make writes it to the path that it is given, which is beside the final one
 * @returns `path`
 */
export async function makeOnce(path: string, make: (path: string) => Promise<void>): Promise<string> {
  if (existsSync(path)) return path;
  const unfinished = `${path}.${process.pid}`;
  mkdirSync(dirname(path), { recursive: true });
  await make(unfinished);
  try {
    renameSync(unfinished, path);
  } catch (error) {
    // Another process has provided it.
    if (!existsSync(path)) throw error;
    rmSync(unfinished, { recursive: true });
  }
  return path;
}
