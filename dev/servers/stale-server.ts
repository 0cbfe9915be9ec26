import { existsSync, readdirSync, readFileSync, readlinkSync, realpathSync, rmSync } from 'node:fs';
import { basename, join } from 'node:path';
import { pollUntil } from '../../agent/process/loops.ts';
import { sendSignal } from '../processes/send-signal.ts';
import { Refusal } from '../stack/refusal.ts';

/**
 * Removes the lock file of a dead postmaster after its sessions have ended. PostgreSQL does not remove the file itself
 * when another process of the same user has the same process id.
 * @throws Refusal when a server that does not belong to this stack runs on the folder
 */
export async function removeStaleLock(dataDir: string): Promise<void> {
  const lockFile = join(dataDir, 'postmaster.pid');
  if (existsSync(lockFile)) {
    const postmaster = Number(readFileSync(lockFile, 'utf8').split('\n')[0]);
    if (serverProcesses(dataDir).includes(postmaster)) {
      throw new Refusal(`another PostgreSQL (process ${postmaster}) runs on ${dataDir}: stop it first`);
    }
  }
  await waitForServerProcesses(dataDir);
  rmSync(lockFile, { force: true });
}

const ENDED = { within: 5_000, every: 20 };

/**
 * Resolves when no process of a dead postmaster uses the folder, which prevents a new start. Busy sessions notice the
 * death of their postmaster late, so they are killed after a while.
 */
export async function waitForServerProcesses(dataDir: string): Promise<void> {
  while (!(await pollUntil(async () => serverProcesses(dataDir).length === 0, ENDED)))
    for (const pid of serverProcesses(dataDir)) sendSignal(pid, 'SIGKILL');
}

/** PostgreSQL's processes in this data folder. They are not in their postmaster's process group. */
function serverProcesses(dataDir: string): number[] {
  const folder = existsSync(dataDir) ? realpathSync(dataDir) : dataDir;
  const isServer = (pid: string) =>
    linkOf(`/proc/${pid}/cwd`) === folder && basename(linkOf(`/proc/${pid}/exe`) ?? '') === 'postgres';
  return readdirSync('/proc')
    .filter((entry) => /^\d+$/.test(entry) && isServer(entry))
    .map(Number);
}

function linkOf(path: string): string | null {
  try {
    return readlinkSync(path);
  } catch {
    return null;
  }
}
