import { execFileSync, spawnSync } from 'node:child_process';
import { userInfo } from 'node:os';
import { Refusal } from '../stack/refusal.ts';

export interface OsUser {
  name: string;
  uid: number;
  gid: number;
}

/** Neither server runs as root: both refuse to. */
const UNPRIVILEGED = ['postgres', 'nobody'];

/** The user that PostgreSQL, PgBouncer and the agent run as: the invoking one, unless that is root. */
export function serverUser(): OsUser {
  const { username: name, uid, gid } = userInfo();
  if (uid !== 0) return { name, uid, gid };
  for (const candidate of UNPRIVILEGED) {
    const found = lookUp(candidate);
    if (found) return found;
  }
  throw new Refusal(`started by root, the stack needs one of these users: ${UNPRIVILEGED.join(', ')}`);
}

function lookUp(name: string): OsUser | null {
  const id = (flag: string) =>
    Number(execFileSync('id', [flag, name], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }));
  try {
    return { name, uid: id('-u'), gid: id('-g') };
  } catch {
    return null;
  }
}

/** Asked of the kernel as that user, since the answer depends on every folder above `path`. */
export const canReach = (user: OsUser, path: string) =>
  spawnSync('test', ['-x', path], { uid: user.uid, gid: user.gid, cwd: '/' }).status === 0;
