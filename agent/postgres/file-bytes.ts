import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';

/** How many files a database has; none if it was dropped in between. Reads names only. @param oid of the database */
export const countFiles = async (dataDir: string, oid: string): Promise<number> =>
  (await readdir(join(dataDir, 'base', oid)).catch(() => [])).length;

/** `pgsql_tmp<pid>.<number>`, or a folder of that name for the processes of a parallel query. */
const TEMPORARY = /^pgsql_tmp(\d+)\./;

/** Bytes of a file, or of all files in a folder; none if it was removed in between. */
export async function bytesOf(path: string): Promise<number> {
  const found = await stat(path).catch(() => null);
  if (!found?.isDirectory()) return found?.size ?? 0;
  const sizes = (await readdir(path).catch(() => [])).map((name) => bytesOf(join(path, name)));
  return (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0);
}

/** Bytes of the temporary files of each server process, by its pid. */
export async function temporaryBytes(dataDir: string): Promise<Map<number, number>> {
  const folder = join(dataDir, 'base/pgsql_tmp');
  const bytes = new Map<number, number>();
  for (const name of await readdir(folder).catch(() => [])) {
    const pid = Number(TEMPORARY.exec(name)?.[1]);
    if (pid) bytes.set(pid, (bytes.get(pid) ?? 0) + (await bytesOf(join(folder, name))));
  }
  return bytes;
}
