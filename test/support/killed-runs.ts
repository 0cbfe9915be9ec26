import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync, rmSync } from 'node:fs';
import { sendSignal } from '../../dev/processes/send-signal.ts';

/** Ends the processes of a test run that was killed, and removes its mounts and files. @param folder its temporary files */
export function cleanUpKilledRun(folder: string): void {
  try {
    for (const pid of readdirSync('/proc'))
      if (/^\d+$/.test(pid) && usesFolder(pid, folder)) sendSignal(Number(pid), 'SIGKILL');
    for (const [, mount = ''] of readFileSync('/proc/self/mounts', 'utf8').matchAll(/^\S+ (\S+)/gm))
      if (mount.startsWith(`${folder}/`)) execFileSync('umount', ['--lazy', mount], { stdio: 'ignore' });
    rmSync(folder, { recursive: true, force: true });
  } catch {
    // Another run that starts now has been faster, or the next one tries again.
  }
}

/** Whether the folder, or a path in it, is in the arguments or in the environment, which children inherit. */
function usesFolder(pid: string, folder: string): boolean {
  try {
    const words = readFileSync(`/proc/${pid}/cmdline`, 'utf8') + readFileSync(`/proc/${pid}/environ`, 'utf8');
    return words.includes(`${folder}/`) || words.includes(`${folder}\0`);
  } catch {
    // It has ended, or belongs to another user.
    return false;
  }
}
