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
import { PLATFORM_ROLE } from '../../agent/servers/configuration.ts';
import type { OsUser } from '../processes/os-user.ts';
import { runAs } from '../processes/run-as.ts';
import { Refusal } from '../stack/refusal.ts';

const MAJOR_VERSION = '18';

/** Where initdb works; its result is moved up, PG_VERSION last, so a first start that was cut off shows. */
const UNFINISHED = '.initdb';

/**
 * Whether there is a data folder to start PostgreSQL on; false when one is still to be made.
 * @throws Refusal when what is there is no data folder of this stack's user and version
 */
export function checkDataFolder(dataDir: string, user: OsUser): boolean {
  if (!existsSync(dataDir)) return false;
  const otherwise = 'move it away, or choose another PGDATA_DIR or DEV_DIR';
  try {
    const entries = readdirSync(dataDir);
    if (entries.length === 0 || entries.includes(UNFINISHED)) return false;
    if (!entries.includes('PG_VERSION')) {
      throw new Refusal(`${dataDir} is no PostgreSQL data folder: PG_VERSION is missing (${otherwise})`);
    }
    const version = readFileSync(join(dataDir, 'PG_VERSION'), 'utf8').trim();
    if (version !== MAJOR_VERSION) {
      throw new Refusal(
        `${dataDir} is of PostgreSQL ${version}, this stack runs ${MAJOR_VERSION} (${otherwise})`,
      );
    }
    const owner = statSync(dataDir).uid;
    if (owner !== user.uid) {
      throw new Refusal(
        `${dataDir} belongs to user id ${owner}, PostgreSQL would run as ${user.name} (${otherwise})`,
      );
    }
  } catch (error) {
    if (error instanceof Refusal) throw error;
    throw new Refusal(
      `${dataDir} can't be read (${(error as NodeJS.ErrnoException).code}): start the stack as its owner`,
    );
  }
  return true;
}

/** @param dataDir an empty folder, or what an unfinished call left */
export async function initializeDataFolder(dataDir: string, binaries: string, user: OsUser): Promise<void> {
  for (const entry of readdirSync(dataDir)) rmSync(join(dataDir, entry), { recursive: true });
  chownSync(dataDir, user.uid, user.gid);
  chmodSync(dataDir, 0o700);
  const unfinished = join(dataDir, UNFINISHED);
  const options = [
    `--pgdata=${unfinished}`,
    `--username=${PLATFORM_ROLE}`,
    '--encoding=UTF8',
    // One order of text on every machine, whatever locales it has.
    '--locale-provider=builtin',
    '--builtin-locale=C.UTF-8',
    '--locale=C',
    // The stack's own rules are used instead of these.
    '--auth-local=peer',
    '--auth-host=reject',
  ];
  await runAs(user, join(binaries, 'initdb'), options, { cwd: dataDir });
  const made = readdirSync(unfinished).filter((entry) => entry !== 'PG_VERSION');
  for (const entry of [...made, 'PG_VERSION']) renameSync(join(unfinished, entry), join(dataDir, entry));
  rmSync(unfinished, { recursive: true });
}
