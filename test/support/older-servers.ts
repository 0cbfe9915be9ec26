import { execFileSync } from 'node:child_process';
import { existsSync, statSync } from 'node:fs';
import { join } from 'node:path';

const FOLDER = join(import.meta.dirname, 'servers');
const LOCK = join(FOLDER, 'package-lock.json');

/** Versions before that of the hosts; the packages are of one architecture. */
export const OLDER_VERSIONS = process.arch === 'x64' ? ['13', '14', '15', '16', '17'] : [];

/**
 * The folder of another version's programs. They are no part of the product, so they are installed on demand. To be called as
 * the user that runs the tests.
 */
export function programsOf(version: string): string {
  const installed = join(FOLDER, 'node_modules/.package-lock.json');
  if (!existsSync(installed) || statSync(installed).mtimeMs < statSync(LOCK).mtimeMs) {
    execFileSync('npm', ['ci', '--ignore-scripts'], { cwd: FOLDER, stdio: 'ignore' });
    // npm's packages have no links: a script of each makes those of its libraries.
    for (const one of OLDER_VERSIONS)
      execFileSync(process.execPath, ['scripts/hydrate-symlinks.js'], {
        cwd: join(FOLDER, `node_modules/postgres-${one}-x64`),
        stdio: 'ignore',
      });
  }
  return join(FOLDER, `node_modules/postgres-${version}-x64/native/bin`);
}
