import { createHash } from 'node:crypto';
import { chownSync, cpSync, existsSync, lstatSync, mkdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { canReach, type OsUser } from '../processes/os-user.ts';
import { Refusal } from './refusal.ts';

/** Where the database host's files go when root keeps DEV_DIR where no other user can reach it. */
const BESIDE = '/var/lib/branchgate-dev';

/**
 * The folder of the database host: certificate, configuration, agent, and PostgreSQL's data unless
 * PGDATA_DIR says otherwise. It lies in DEV_DIR when the servers' user can reach that, as it can unless root
 * started the stack in a folder of its own; otherwise in a folder that stands for this DEV_DIR.
 */
export function chooseHostFolder(devDir: string, inDevDir: string, user: OsUser): string {
  return canReach(user, devDir) ? inDevDir : join(BESIDE, shortHash(devDir));
}

export const shortHash = (text: string) => createHash('sha256').update(text).digest('hex').slice(0, 12);

/** Folders that the database host needs, owned by the user that needs them. */
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

/** A unix socket's whole path has at most 107 bytes; the longest name in the folder is `.s.PGSQL.65535`. */
const LONGEST_SOCKET_FOLDER = 90;

function socketFolder(dir: string): string {
  const within = join(dir, 'sockets');
  return Buffer.byteLength(within) <= LONGEST_SOCKET_FOLDER
    ? within
    : join('/tmp', `branchgate-${shortHash(dir)}`);
}

/** @throws Refusal when another user has made one of them: sockets may lie in a folder that all can write to */
export function makeHostFolder(folder: HostFolder, user: OsUser): void {
  mkdirSync(folder.dir, { recursive: true, mode: 0o755 });
  mkdirSync(folder.programs, { recursive: true });
  for (const dir of [folder.config, folder.tls, folder.state, folder.logs, folder.sockets]) {
    if (!existsSync(dir)) {
      mkdirSync(dir, { mode: 0o700 });
      chownSync(dir, user.uid, user.gid);
    }
    if (lstatSync(dir).uid !== user.uid)
      throw new Refusal(`${dir} does not belong to ${user.name}: remove it`);
  }
  // Its owner is judged with all else about it.
  if (!existsSync(folder.data)) {
    mkdirSync(folder.data, { recursive: true, mode: 0o700 });
    chownSync(folder.data, user.uid, user.gid);
  }
}

/**
 * `source` where `user` can reach it, otherwise a copy below the host's folder, made anew when the source
 * has changed.
 * @param proof the file inside `source` that must be executable, and whose time tells versions apart
 */
export function withinReach(source: string, copy: string, user: OsUser, proof = ''): string {
  if (canReach(user, join(source, proof))) return source;
  if (!sameFile(join(source, proof), join(copy, proof))) {
    const aside = `${copy}.new`;
    rmSync(aside, { recursive: true, force: true });
    cpSync(source, aside, { recursive: true, preserveTimestamps: true, verbatimSymlinks: true });
    rmSync(copy, { recursive: true, force: true });
    renameSync(aside, copy);
  }
  return copy;
}

function sameFile(one: string, other: string): boolean {
  const [a, b] = [one, other].map((path) => statSync(path, { throwIfNoEntry: false }));
  return a !== undefined && b !== undefined && a.size === b.size && Math.abs(a.mtimeMs - b.mtimeMs) < 1000;
}
