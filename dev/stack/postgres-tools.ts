import { execFileSync } from 'node:child_process';
import { chownSync, copyFileSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { ROOT } from '../build/repository.ts';
import { withinReach } from './host-folder.ts';
import type { OsUser } from './os-user.ts';

/** Where `dev/setup` unpacks pg_dump, pg_restore and psql for the tests, if the machine does not have them. */
const UNPACKED = join(ROOT, '.dev/postgres-tools');
const INSTALLER = join(ROOT, 'dev/postgres-tools');
const PROGRAMS = ['pg_dump', 'pg_restore', 'psql'];

/** Of the system that ran the last one, which costs a few programs to find out. */
let found: string | undefined;

/** The folder of the programs, or '' if there is none yet. */
export function findTools(): string {
  found ||= execFileSync(INSTALLER, ['--find', UNPACKED], { encoding: 'utf8' }).trim();
  return found;
}

/** Settings of a proxy, which an agent passes to no program. */
const PROXIES = ['http_proxy', 'https_proxy', 'no_proxy'];

/**
 * The folder of PostgreSQL's client programs for an agent: those that are there, or programs of the same names that
 * install them at their first use. Most stacks copy and compare nothing, so they do not wait for 30 MB.
 * @param folder of the host, where root may write
 */
export function toolsFolder(folder: string, user: OsUser): string {
  const bin = findTools();
  if (bin.startsWith(UNPACKED))
    return join(withinReach(UNPACKED, join(folder, 'postgres-tools'), user, 'bin/pg_dump'), 'bin');
  if (bin !== '') return bin;
  const late = join(folder, 'postgres-tools-later');
  const own = join(late, 'own');
  const later = join(late, 'bin');
  const installer = join(late, 'install');
  rmSync(later, { recursive: true, force: true });
  for (const path of [own, later]) mkdirSync(path, { recursive: true });
  chownSync(own, user.uid, user.gid);
  copyFileSync(INSTALLER, installer);
  const settings = PROXIES.flatMap((name) => {
    const value = process.env[name];
    return value === undefined ? [] : [`export ${name}='${value.replaceAll("'", "'\\''")}'\n`];
  });
  for (const program of PROGRAMS)
    writeFileSync(
      join(later, program),
      `#!/bin/sh -p
PATH=/usr/sbin:/usr/bin:/sbin:/bin
${settings.join('')}# One that is stopped installs on, for the next one.
bin=$(setsid --wait flock '${own}/lock' '${installer}' '${own}/tools') || exit 1
exec "$bin/${program}" "$@"
`,
      { mode: 0o755 },
    );
  return later;
}

/** Of the tests: installs them if they are missing, as `dev/setup` does. To be called as root if that runs the tests. */
export function requireTools(copy: string, user: OsUser): string {
  found = findTools() || execFileSync(INSTALLER, [UNPACKED], { encoding: 'utf8' }).trim();
  return found.startsWith(UNPACKED)
    ? join(withinReach(dirname(found), copy, user, 'bin/pg_dump'), 'bin')
    : found;
}
