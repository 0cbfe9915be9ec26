import { existsSync, readdirSync, readFileSync, readlinkSync, realpathSync, rmSync } from 'node:fs';
import { basename, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { sendSignal } from '../processes/send-signal.ts';
import { Refusal } from '../stack/refusal.ts';

/**
 * Removes what a postmaster that is gone has left: its lock file, which PostgreSQL does not remove itself when
 * another process of the same user has got that process id since, and sessions that have not noticed yet.
 * @throws Refusal when a server that is not this stack's runs on the folder
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

const DESERTED_WITHIN_MS = 5_000;
const POLL_MS = 20;

/**
 * Resolves once no process of a dead postmaster works in the folder; no other can be started before. Sessions
 * that are busy notice their postmaster's death late: they are left to finish, then ended.
 */
export async function waitForServerProcesses(dataDir: string): Promise<void> {
  const deadline = Date.now() + DESERTED_WITHIN_MS;
  for (let left = serverProcesses(dataDir); left.length > 0; left = serverProcesses(dataDir)) {
    if (Date.now() > deadline) for (const pid of left) sendSignal(pid, 'SIGKILL');
    await sleep(POLL_MS);
  }
}

/** PostgreSQL's processes that work in this data folder. They leave their postmaster's process group. */
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
