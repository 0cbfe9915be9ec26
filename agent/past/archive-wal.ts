import { archiveFile } from './archive.ts';
import { dropOldest } from './base-copies.ts';
import { foldersIn } from './folders.ts';

/**
 * PostgreSQL's `archive_command`. It loads as little as it can.
 * @param folder PAST_DIR
 * @param path of the file, relative to the data of PostgreSQL
 * @param say writes a line to the log of PostgreSQL
 * @returns the exit code; with another one than 0, PostgreSQL keeps the file and tries again
 */
export async function archiveWal(folder: string, path: string, say: (line: string) => void): Promise<number> {
  const folders = foldersIn(folder);
  try {
    if (!(await archiveFile(folders, path, () => dropOldest(folders))))
      say(
        `branchgate-agent: ${folder} is full, so ${path} was left out: recoveries begin after the next base copy. Enlarge its volume.`,
      );
    return 0;
  } catch (error) {
    say(`branchgate-agent: ${path} was not archived: ${(error as Error).message}`);
    return 1;
  }
}
