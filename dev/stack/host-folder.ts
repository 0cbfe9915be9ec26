import { createHash } from 'node:crypto';
import { chownSync, cpSync, existsSync, lstatSync, mkdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { basename, join } from 'node:path';
import { canReach, type OsUser } from './os-user.ts';
import { Refusal } from './settings.ts';

/** Folder of the database host's files when only root can access DEV_DIR. */
const SHARED_DIR = '/var/lib/branchgate-dev';

/**
 * The folder of the database host, with certificate, configuration, agent, and PostgreSQL's data unless
 * PGDATA_DIR is set. It is in DEV_DIR if the servers' user can access that. It cannot when root started the
 * stack in a private folder; then a folder named after DEV_DIR is used.
 */
export function chooseHostFolder(devDir: string, inDevDir: string, user: OsUser): string {
  const isFirst = basename(inDevDir) === 'host';
  return canReach(user, devDir) ? inDevDir : join(SHARED_DIR, shortHash(isFirst ? devDir : inDevDir));
}

export const shortHash = (text: string) => createHash('sha256').update(text).digest('hex').slice(0, 12);

/** Folders of the database host. */
export function hostFolder(dir: string, settings: { PGDATA_DIR?: string | undefined }) {
  return {
    dir,
    config: join(dir, 'config'),
    tls: join(dir, 'tls'),
    state: join(dir, 'agent'),
    logs: join(dir, 'logs'),
    data: settings.PGDATA_DIR ?? join(dir, 'data'),
    programs: join(dir, 'programs'),
    sockets: socketFolder(dir),
  };
}

export type HostFolder = ReturnType<typeof hostFolder>;

/**
 * A unix socket's path has at most 107 bytes (unix(7)); the longest name in the folder is `.s.PGSQL.65535`.
 */
const LONGEST_SOCKET_FOLDER = 90;

function socketFolder(dir: string): string {
  const within = join(dir, 'sockets');
  return Buffer.byteLength(within) <= LONGEST_SOCKET_FOLDER
    ? within
    : join('/tmp', `branchgate-${shortHash(dir)}`);
}

/**
 * Creates the folders.
 * @throws Refusal when another user owns one, since all users can write to the sockets' parent
 */
export function makeHostFolder(folder: HostFolder, user: OsUser): void {
  mkdirSync(folder.dir, { recursive: true, mode: 0o755 });
  mkdirSync(folder.programs, { recursive: true });
  for (const dir of [folder.config, folder.tls, folder.state, folder.logs, folder.sockets]) {
    if (!existsSync(dir)) {
      mkdirSync(dir, { mode: 0o700 });
      chownSync(dir, user.uid, user.gid);
    }
    if (lstatSync(dir).uid !== user.uid)
      throw new Refusal(`${dir} does not belong to user ${user.name}: remove it`);
  }
  // `checkDataFolder` checks the owner of an existing one.
  if (!existsSync(folder.data)) {
    mkdirSync(folder.data, { recursive: true, mode: 0o700 });
    chownSync(folder.data, user.uid, user.gid);
  }
}

/**
 * `source` if `user` can access it, otherwise a copy in the host's folder, which is replaced when the source has
 * changed.
 * @param proof the file in `source` that must be executable, and whose modification time identifies the
 *   version
 */
export function withinReach(source: string, copy: string, user: OsUser, proof = ''): string {
  if (canReach(user, join(source, proof))) return source;
  if (!sameFile(join(source, proof), join(copy, proof))) {
    const temporary = `${copy}.new`;
    rmSync(temporary, { recursive: true, force: true });
    cpSync(source, temporary, { recursive: true, preserveTimestamps: true, verbatimSymlinks: true });
    rmSync(copy, { recursive: true, force: true });
    renameSync(temporary, copy);
  }
  return copy;
}

function sameFile(one: string, other: string): boolean {
  const [a, b] = [one, other].map((path) => statSync(path, { throwIfNoEntry: false }));
  return a !== undefined && b !== undefined && a.size === b.size && Math.abs(a.mtimeMs - b.mtimeMs) < 1000;
}
