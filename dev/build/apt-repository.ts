import { execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { gzipSync } from 'node:zlib';

const SUITE = 'stable';
const ARCHITECTURES = ['amd64', 'arm64'];
/** Below the root of the repository, where all versions stay, so that a downgrade is possible. */
const POOL = 'pool/main/b/branchgate-agent';

/**
 * Adds packages to a repository for apt, and signs it with the secret key of gpg's home (deb-src, apt-secure(8)).
 * `apt-ftparchive` makes the lists: reprepro keeps one version of a package before its version 5.4, which Debian 12 lacks.
 * @param folder of the repository, which a web server offers as it is
 * @param packages paths of Debian packages; one that the repository has already must have the same bytes
 * @param key fingerprint of the secret key
 * @throws Error if a package of the same name has other bytes
 */
export function addToRepository(folder: string, packages: readonly string[], key: string): void {
  const run = (command: string, words: readonly string[]) =>
    execFileSync(command, words, { cwd: folder, encoding: 'utf8', maxBuffer: 64 * 2 ** 20 });
  mkdirSync(join(folder, POOL), { recursive: true });
  for (const path of packages) {
    const place = join(folder, POOL, basename(path));
    try {
      execFileSync('cmp', ['--silent', path, place]);
    } catch {
      if (readdirSync(join(folder, POOL)).includes(basename(path)))
        throw new Error(`${basename(path)} is in the repository with other bytes. Release another version.`);
      cpSync(path, place);
    }
  }
  const release = join(folder, 'dists', SUITE);
  rmSync(release, { recursive: true, force: true });
  for (const architecture of ARCHITECTURES) {
    const lists = join(release, 'main', `binary-${architecture}`);
    mkdirSync(lists, { recursive: true });
    const list = run('apt-ftparchive', ['--arch', architecture, 'packages', POOL]);
    writeFileSync(join(lists, 'Packages'), list);
    writeFileSync(join(lists, 'Packages.gz'), gzipSync(list));
  }
  const fields = {
    Origin: 'branchgate',
    Label: 'branchgate',
    Suite: SUITE,
    Codename: SUITE,
    Components: 'main',
    Architectures: ARCHITECTURES.join(' '),
  };
  const options = Object.entries(fields).flatMap(([name, value]) => [
    '-o',
    `APT::FTPArchive::Release::${name}=${value}`,
  ]);
  writeFileSync(
    join(release, 'Release'),
    run('apt-ftparchive', [...options, 'release', join('dists', SUITE)]),
  );
  const gpg = ['--batch', '--yes', '--local-user', key];
  run('gpg', [...gpg, '--clearsign', '--output', join(release, 'InRelease'), join(release, 'Release')]);
  run('gpg', [...gpg, '--export', '--output', join(folder, 'branchgate.gpg'), key]);
}

/** `node dev/build/apt-repository.ts FOLDER KEY PACKAGE…`, in the workflow of a release. */
if (import.meta.main) {
  const [folder = '', key = '', ...packages] = process.argv.slice(2);
  if (packages.length === 0) throw new Error('usage: apt-repository.ts FOLDER KEY PACKAGE…');
  addToRepository(folder, packages, key);
}
