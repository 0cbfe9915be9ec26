import { execFileSync, spawnSync } from 'node:child_process';
import { userInfo } from 'node:os';
import { Refusal } from '../stack/refusal.ts';

export interface OsUser {
  name: string;
  uid: number;
  gid: number;
}

/** Users for the servers, both of which refuse to run as root. */
const UNPRIVILEGED = ['postgres', 'nobody'];

/** The user that PostgreSQL, PgBouncer and the agent run as: the invoking user, unless that is root. */
export function serverUser(): OsUser {
  const { username: name, uid, gid } = userInfo();
  if (uid !== 0) return { name, uid, gid };
  for (const candidate of UNPRIVILEGED) {
    const found = lookUp(candidate);
    if (found) return found;
  }
  throw new Refusal(
    `the servers cannot run as root: create one of the users ${UNPRIVILEGED.join(', ')}, or start the stack as another user`,
  );
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

/** Whether the user can access `path`, tested as that user, because access depends on every parent folder. */
export const canReach = (user: OsUser, path: string) =>
  spawnSync('test', ['-x', path], { uid: user.uid, gid: user.gid, cwd: '/' }).status === 0;
