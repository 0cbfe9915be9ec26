import { execFile, execFileSync, spawnSync } from 'node:child_process';
import { userInfo } from 'node:os';
import { basename } from 'node:path';
import { promisify } from 'node:util';
import { type Environment, Refusal } from './settings.ts';

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

/** Those that were looked up, by name. */
const KNOWN = new Map<string, OsUser>();

function lookUp(name: string): OsUser | null {
  const known = KNOWN.get(name);
  if (known) return known;
  const id = (flag: string) =>
    Number(execFileSync('id', [flag, name], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }));
  try {
    const found = { name, uid: id('-u'), gid: id('-g') };
    KNOWN.set(name, found);
    return found;
  } catch {
    return null;
  }
}

/** Whether the user can access `path`, tested as that user, because access depends on every parent folder. */
export const canReach = (user: OsUser, path: string) =>
  spawnSync('test', ['-x', path], { uid: user.uid, gid: user.gid, cwd: '/' }).status === 0;

/**
 * Runs a program to its end.
 * @throws Refusal with the last line of its error output
 */
export async function runAs(
  user: OsUser,
  command: string,
  args: readonly string[],
  options: { cwd: string; env?: Environment },
): Promise<string> {
  const { uid, gid } = user;
  try {
    return (await promisify(execFile)(command, args, { ...options, uid, gid })).stdout;
  } catch (error) {
    const { stderr, message } = error as Error & { stderr?: string };
    throw new Refusal(`${basename(command)} failed: ${(stderr || message).trim().split('\n').at(-1)}`);
  }
}

/** A program that root starts as `user` with CAP_NET_ADMIN, as the drop-in of the agent's unit does. */
export const withNetAdmin = (
  { uid, gid }: OsUser,
  { command, args }: { command: string; args: readonly string[] },
) => ({
  command: 'setpriv',
  args: [
    ...['--reuid', String(uid), '--regid', String(gid), '--clear-groups'],
    ...['--inh-caps', '+net_admin', '--ambient-caps', '+net_admin'],
    ...['--', command, ...args],
  ],
});
