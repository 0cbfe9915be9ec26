import { execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { addToRepository } from '../../dev/build/apt-repository.ts';
import { ROOT } from '../../dev/build/repository.ts';
import { VERSION } from '../../shared/version.ts';
import { agentPackage, install } from '../support/debian.ts';
import { bootDebian, canBoot, type DebianSystem } from '../support/debian-system.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { temporaryFolder } from '../support/stack/stack.ts';

const PORT = 8099;
const WITHIN_MS = 1_800_000;
const NEXT = '9.9.9';

/** Lines of docs/deploying.md that add the repository to a machine, with the address of the test. */
function linesOfPage(): string {
  const page = readFileSync(join(ROOT, 'docs/deploying.md'), 'utf8');
  const [, block = ''] = /```sh\n(curl [^\n]*branchgate\.gpg[^`]*?)```/.exec(page) ?? [];
  expect(block).toContain('apt install branchgate-agent');
  return block.replaceAll(/https:\/\/[^\s\]]+\/apt/g, `http://127.0.0.1:${PORT}`);
}

describe.runIf(IS_NIGHTLY && canBoot() && install('apt-ftparchive', 'apt-utils') && install('gpg'))(
  'the repository for apt',
  () => {
    const folder = temporaryFolder();
    const repository = join(folder, 'apt');
    let system: DebianSystem;
    let key: string;
    let first: string;

    /** The package with another version in its control file. */
    function laterPackage(): string {
      const root = join(folder, 'unpacked');
      execFileSync('dpkg-deb', ['--raw-extract', first, root]);
      const control = join(root, 'DEBIAN/control');
      writeFileSync(control, readFileSync(control, 'utf8').replace(/^Version: .*/m, `Version: ${NEXT}`));
      const later = join(folder, `branchgate-agent_${NEXT}_amd64.deb`);
      execFileSync('dpkg-deb', ['-Znone', '--root-owner-group', '--build', root, later]);
      return later;
    }

    beforeAll(async () => {
      mkdirSync(repository);
      process.env.GNUPGHOME = join(folder, 'gnupg');
      mkdirSync(process.env.GNUPGHOME, { mode: 0o700 });
      const words = [
        '--batch',
        '--passphrase',
        '',
        '--quick-generate-key',
        'branchgate test',
        'ed25519',
        'sign',
      ];
      execFileSync('gpg', words, { stdio: 'ignore' });
      const keys = execFileSync('gpg', ['--list-secret-keys', '--with-colons'], { encoding: 'utf8' });
      key = /^fpr:+(\w+):/m.exec(keys)?.[1] ?? '';
      first = join(folder, `branchgate-agent_${VERSION}_amd64.deb`);
      cpSync(await agentPackage(), first);
      addToRepository(repository, [first], key);
      system = await bootDebian();
      await system.serve(repository, PORT);
    }, WITHIN_MS);
    afterAll(async () => {
      await system?.stop();
      execFileSync('gpgconf', ['--kill', 'gpg-agent']);
      delete process.env.GNUPGHOME;
      rmSync(folder, { recursive: true, force: true });
    });

    const apt = (...words: string[]) =>
      system.must(
        'env',
        'DEBIAN_FRONTEND=noninteractive',
        'apt-get',
        '--quiet',
        '--no-install-recommends',
        ...words,
      );
    const installed = async () =>
      (await system.must('sh', '-c', 'dpkg-query --show branchgate-agent | cut -f2')).trim();

    test('installs, upgrades and downgrades as the page says', { timeout: WITHIN_MS }, async () => {
      // The system has no curl, and no network: the key comes with the files.
      const lines = linesOfPage().replace(
        /^curl .*$/m,
        'cp /srv/test/branchgate.gpg /usr/share/keyrings/branchgate.gpg',
      );
      system.give(join(repository, 'branchgate.gpg'), 'branchgate.gpg');
      const script = lines.replace(
        'apt install branchgate-agent',
        'apt install --yes --no-install-recommends branchgate-agent',
      );
      await system.must('sh', '-ec', script);
      expect(await installed()).toBe(VERSION);

      addToRepository(repository, [laterPackage()], key);
      await apt('update');
      await apt('upgrade', '--yes');
      expect(await installed()).toBe(NEXT);
      await apt('install', '--yes', '--allow-downgrades', `branchgate-agent=${VERSION}`);
      expect(await installed()).toBe(VERSION);
    });

    test('a package that somebody changed is refused, and so is other content of a version', async () => {
      const list = join(repository, 'dists/stable/InRelease');
      const signed = readFileSync(list, 'utf8');
      writeFileSync(list, signed.replace('Origin: branchgate', 'Origin: someone'));
      const refused = await system.run('apt-get', 'update');
      expect(refused.stderr + refused.stdout).toMatch(/signature verification/i);
      writeFileSync(list, signed);
      const other = join(folder, `other/branchgate-agent_${VERSION}_amd64.deb`);
      mkdirSync(join(folder, 'other'));
      writeFileSync(other, 'other bytes');
      expect(() => addToRepository(repository, [other], key)).toThrow('other bytes');
    });
  },
);
