import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';

/** Bytes copied so far, and how many it will be. */
export type OnProgress = (copied: number, total: number) => void;

const LOOK_EVERY_MS = 500;

/**
 * Reports the size of the directory that appears below `base/` while a database is copied.
 * PostgreSQL tells nobody the new database's number before it is finished; with two copies at once the
 * figure may be the other's, which is good enough for a line on a terminal.
 * @returns what stops the reports
 */
export async function watchCopy(
  dataDir: string,
  total: number,
  onProgress?: OnProgress,
): Promise<() => void> {
  if (!onProgress) return () => {};
  const base = join(dataDir, 'base');
  const before = new Set(await readdir(base));
  const timer = setInterval(async () => {
    const fresh = (await readdir(base).catch(() => [])).filter((name) => !before.has(name)).at(-1);
    if (fresh) onProgress(await sizeOf(join(base, fresh)), total);
  }, LOOK_EVERY_MS);
  return () => clearInterval(timer);
}

async function sizeOf(folder: string): Promise<number> {
  const names = await readdir(folder).catch(() => []);
  const sizes = await Promise.all(
    names.map((name) =>
      stat(join(folder, name)).then(
        ({ size }) => size,
        () => 0,
      ),
    ),
  );
  return sizes.reduce((sum, size) => sum + size, 0);
}
