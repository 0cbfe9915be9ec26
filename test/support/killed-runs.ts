import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { sendSignal } from '../../dev/stack/processes.ts';

const NAME = 'branchgate-tests-';

/**
 * The folder of temporary files of the run in the process with this id.
 * @param parent where such folders are
 */
export const folderOfRun = (parent: string, pid: number): string => join(parent, `${NAME}${pid}`);

/**
 * Ends the processes of runs that were killed, and removes their mounts and folders.
 * @param parent of the folders
 */
export function cleanUpKilledRuns(parent: string): void {
  const isLeft = (text: string) =>
    text.split(join(parent, NAME)).some((rest, index) => {
      const [pid] = /^\d+(?![^/\0])/.exec(rest) ?? [];
      return index > 0 && pid !== undefined && !existsSync(`/proc/${pid}`);
    });
  try {
    for (const pid of readdirSync('/proc'))
      if (/^\d+$/.test(pid) && isLeft(wordsOf(pid))) sendSignal(Number(pid), 'SIGKILL');
    for (const [, mount = ''] of readFileSync('/proc/self/mounts', 'utf8').matchAll(/^\S+ (\S+)/gm))
      if (isLeft(mount)) execFileSync('umount', ['--lazy', mount], { stdio: 'ignore' });
    for (const name of readdirSync(parent))
      if (isLeft(join(parent, name))) rmSync(join(parent, name), { recursive: true, force: true });
  } catch {
    // Another run that starts now has been faster, or the next one tries again.
  }
}

/**
 * Arguments and environment of a process, which its children inherit; empty if it has ended, or is of another
 * user.
 */
function wordsOf(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8') + readFileSync(`/proc/${pid}/environ`, 'utf8');
  } catch {
    return '';
  }
}
