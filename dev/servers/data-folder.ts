import {
  chmodSync,
  chownSync,
  existsSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
} from 'node:fs';
import { join } from 'node:path';
import { PLATFORM_ROLE } from '../../agent/postgres/connect.ts';

import type { OsUser } from '../processes/os-user.ts';
import { runAs } from '../processes/run-as.ts';
import { Refusal } from '../stack/refusal.ts';

const MAJOR_VERSION = '18';

/**
 * initdb's working folder. Its result is moved up with PG_VERSION last, so that an interrupted first start is detected.
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
