import { execFile, execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { buildDebianPackage } from '../../dev/build/debian-package.ts';
import { oncePerRun } from './run-folder.ts';

const run = promisify(execFile);

/** Whether this machine can make and install Debian packages. */
export const IS_DEBIAN = existsSync('/usr/bin/dpkg-deb');

/** Whether Debian packages are installed, by a command or a file of theirs, or could be. Only root can install one. */
export function install(command: string, ...packages: string[]): boolean {
  const isInstalled = () =>
    command.startsWith('/')
      ? existsSync(command)
      : spawnSync('which', [command], { stdio: 'ignore' }).status === 0;
  if (isInstalled()) return true;
  if (process.getuid?.() !== 0) return false;
  execFileSync(
    'apt-get',
    [
      ...['install', '--yes', '--quiet', '--no-install-recommends', '-o', 'DPkg::Lock::Timeout=600'],
      ...(packages.length > 0 ? packages : [command]),
    ],
    { stdio: 'ignore', env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' } },
  );
  return isInstalled();
}

/** The package of the agent without compression, which is made in seconds. @returns its path */
export const agentPackage = async (): Promise<string> =>
  join(
    await oncePerRun('debian', async (folder) => {
      const file = await buildDebianPackage(folder, { compression: 'none' });
      await run('ln', [file, join(folder, 'agent.deb')]);
    }),
    'agent.deb',
  );

/** A folder that dpkg treats as an empty system. Scripts of packages run outside of it, with DPKG_ROOT. */
export function dpkgRoot(folder: string) {
  const database = join(folder, 'var/lib/dpkg');
  mkdirSync(join(database, 'info'), { recursive: true });
  mkdirSync(join(database, 'updates'));
  for (const name of ['status', 'available']) writeFileSync(join(database, name), '');
  const options = [`--root=${folder}`, '--force-script-chrootless', '--force-depends', '--force-not-root'];
  return {
    /** @returns what dpkg and the scripts printed */
    async dpkg(...action: string[]): Promise<string> {
      const { stdout, stderr } = await run('dpkg', [...options, ...action], {
        env: { ...process.env, PATH: `${process.env.PATH}:/usr/sbin:/sbin` },
      });
      return stdout + stderr;
    },
  };
}

/** Targets that every unit refers to. */
const TARGETS = ['basic', 'multi-user', 'network-online', 'paths', 'shutdown', 'sysinit', 'timers'];

/** What `systemd-analyze verify` finds in units below `root`; empty if nothing. */
export function verifyUnits(root: string, names: readonly string[]): string {
  const folder = join(root, 'usr/lib/systemd/system');
  const made = TARGETS.map((name) => join(folder, `${name}.target`)).filter((path) => !existsSync(path));
  mkdirSync(folder, { recursive: true });
  for (const path of made) writeFileSync(path, '[Unit]\nDescription=target of the tests\n');
  const units = names.map((name) => {
    const own = `/etc/systemd/system/${name}`;
    return existsSync(join(root, own)) ? own : `/usr/lib/systemd/system/${name}`;
  });
  const { stdout, stderr } = spawnSync(
    'systemd-analyze',
    ['verify', '--man=no', '--recursive-errors=no', `--root=${root}`, ...units],
    { encoding: 'utf8' },
  );
  for (const path of made) rmSync(path);
  return stdout + stderr;
}
