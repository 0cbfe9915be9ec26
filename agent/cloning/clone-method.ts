import { randomUUID } from 'node:crypto';
import { constants, copyFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { CloneMethod } from './create-clone.ts';

/** Tries whether two files in the data directory can share their blocks. */
export async function probeCloneMethod(dataDir: string): Promise<CloneMethod> {
  const original = join(dataDir, `branchgate-probe-${randomUUID()}`);
  const clone = `${original}-clone`;
  try {
    await writeFile(original, 'probe');
    await copyFile(original, clone, constants.COPYFILE_FICLONE_FORCE);
    return 'reflink';
  } catch {
    return 'copy';
  } finally {
    await Promise.all([rm(original, { force: true }), rm(clone, { force: true })]).catch(() => {});
  }
}
