import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { bytesOf } from '../postgres/file-bytes.ts';
import type { OnProgress } from '../progress.ts';

const POLL_EVERY_MS = 500;

/**
 * Reports the size of the directory that appears below `base/` while a database is copied. PostgreSQL does not show
 * the new database's oid before it is complete. With two concurrent copies the size may be the other one's, which is
 * good enough for a progress line.
 * @returns a function that stops the reports
 */
export async function watchCopy(
  dataDir: string,
  total: number,
  onProgress?: OnProgress,
): Promise<() => void> {
  if (!onProgress) return () => {};
  const base = join(dataDir, 'base');
  const before = new Set(await readdir(base));
  let isOver = false;
  const timer = setInterval(async () => {
    const fresh = (await readdir(base).catch(() => [])).filter((name) => !before.has(name)).at(-1);
    const size = fresh ? await bytesOf(join(base, fresh)) : 0;
    if (fresh && total > 0 && !isOver) onProgress(size / total);
  }, POLL_EVERY_MS);
  return () => {
    isOver = true;
    clearInterval(timer);
  };
}
