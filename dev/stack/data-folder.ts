import {
  chmodSync,
  chownSync,
  existsSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
} from 'node:fs';
import { basename, join } from 'node:path';
import { PLATFORM_ROLE } from '../../agent/postgres/connect.ts';
import { pollUntil } from '../../agent/process/loops.ts';
import { type OsUser, runAs } from './os-user.ts';
import { sendSignal } from './processes.ts';
import { Refusal } from './settings.ts';

const MAJOR_VERSION = '18';

/**
 * initdb's working folder. Its result is moved up with PG_VERSION last, so that an interrupted first start is
 * detected.
 */
const UNFINISHED = '.initdb';

/**
 * Whether PostgreSQL's data folder exists; false when it has yet to be created.
 * @throws Refusal when the folder is not a data folder of this stack's user and version
 */
export function checkDataFolder(dataDir: string, user: OsUser): boolean {
  if (!existsSync(dataDir)) return false;
  const advice = 'move it away, or set PGDATA_DIR or DEV_DIR to another folder';
  try {
    const entries = readdirSync(dataDir);
    if (entries.length === 0 || entries.includes(UNFINISHED)) return false;
    if (!entries.includes('PG_VERSION')) {
      throw new Refusal(
        `${dataDir} is not a PostgreSQL data folder, because PG_VERSION is missing: ${advice}`,
      );
    }
    const version = readFileSync(join(dataDir, 'PG_VERSION'), 'utf8').trim();
    if (version !== MAJOR_VERSION) {
      throw new Refusal(
        `${dataDir} belongs to PostgreSQL ${version}, but this stack runs ${MAJOR_VERSION}: ${advice}`,
      );
    }
    const owner = statSync(dataDir).uid;
    if (owner !== user.uid) {
      throw new Refusal(
        `${dataDir} belongs to user id ${owner}, but PostgreSQL would run as ${user.name}: ${advice}`,
      );
    }
  } catch (error) {
    if (error instanceof Refusal) throw error;
    throw new Refusal(
      `${dataDir} cannot be read (${(error as NodeJS.ErrnoException).code}): start the stack as its owner`,
    );
  }
  return true;
}

interface Initialization {
  /** The folder of `initdb`. */
  binaries: string;
  user: OsUser;
  /** A data folder fresh from `initdb`, which is copied; left out, `initdb` makes a new one. */
  template?: string | undefined;
}

/** @param dataDir an empty folder, or what an unfinished call left */
export async function initializeDataFolder(
  dataDir: string,
  { binaries, user, template }: Initialization,
): Promise<void> {
  for (const entry of readdirSync(dataDir)) rmSync(join(dataDir, entry), { recursive: true });
  chownSync(dataDir, user.uid, user.gid);
  chmodSync(dataDir, 0o700);
  const unfinished = join(dataDir, UNFINISHED);
  const options = [
    `--pgdata=${unfinished}`,
    `--username=${PLATFORM_ROLE}`,
    '--encoding=UTF8',
    // The same text order on every machine, independent of its locales.
    '--locale-provider=builtin',
    '--builtin-locale=C.UTF-8',
    '--locale=C',
    // The stack's own rules replace these.
    '--auth-local=peer',
    '--auth-host=reject',
  ];
  if (template) {
    await runAs(user, 'cp', ['--archive', '--reflink=auto', template, unfinished], { cwd: dataDir });
  } else {
    await runAs(user, join(binaries, 'initdb'), options, { cwd: dataDir });
  }
  const made = readdirSync(unfinished).filter((entry) => entry !== 'PG_VERSION');
  for (const entry of [...made, 'PG_VERSION']) renameSync(join(unfinished, entry), join(dataDir, entry));
  rmSync(unfinished, { recursive: true });
}

/**
 * Removes the lock file of a dead postmaster after its sessions have ended. PostgreSQL does not remove the
 * file itself when another process of the same user has the same process id.
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
 * Resolves when no process of a dead postmaster uses the folder, which prevents a new start. Busy sessions
 * notice the death of their postmaster late, so they are killed after a while.
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
