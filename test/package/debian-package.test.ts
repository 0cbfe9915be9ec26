import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, globSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { buildDebianPackage } from '../../dev/build/debian-package.ts';
import manifest from '../../package.json' with { type: 'json' };
import { agentPackage, dpkgRoot, IS_DEBIAN, install, verifyUnits } from '../support/debian.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';

const sha256 = (path: string) => createHash('sha256').update(readFileSync(path)).digest('hex');

describe.runIf(IS_DEBIAN)('the Debian package of the agent', () => {
  let folder: string;
  let file: string;
  let root: string;
  let dpkg: (...action: string[]) => Promise<string>;
  const path = (name: string) => join(root, name);
  const read = (name: string) => readFileSync(path(name), 'utf8');

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'branchgate-deb-'));
    file = await agentPackage();
    root = join(folder, 'root');
    mkdirSync(root);
    ({ dpkg } = dpkgRoot(root));
    await dpkg('--install', file);
  });
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  test('is named and described by the version of this release', () => {
    const fields = execFileSync('dpkg-deb', ['--field', file], { encoding: 'utf8' });
    expect(fields).toContain(`Version: ${manifest.version}\n`);
    expect(fields).toMatch(/^Recommends: postgresql-18, pgbouncer, xfsprogs/m);
    expect(fields).toMatch(/^Depends:.* postgresql-client-18/m);
    expect(fields).not.toMatch(/^Depends:.*(postgresql-18|pgbouncer)/m);
  });

  test('installs an agent that runs with the Node of the package', () => {
    const words = [path('opt/branchgate/branchgate-agent.mjs'), '--version'];
    const version = execFileSync(path('usr/lib/branchgate-agent/node'), words, { encoding: 'utf8' });
    expect(version).toBe(`${manifest.version}\n`);
    expect(read('usr/lib/systemd/system/branchgate-agent.service')).toMatch(
      /^ExecStart=\/usr\/lib\/branchgate-agent\/node .* \/opt\/branchgate\/branchgate-agent\.mjs run$/m,
    );
  });

  test('has a manual page of each command and a completion', () => {
    const manual = gunzipSync(readFileSync(path('usr/share/man/man8/branchgate-agent.8.gz'))).toString();
    for (const command of ['doctor', 'branch clone', 'pooler restart'])
      expect(manual).toContain(`\\fB${command}\\fR`);
    expect(manual).toContain('.TP\n.B 3\nrefused in the present state');
    execFileSync('bash', ['-n', path('usr/share/bash-completion/completions/branchgate-agent')]);
  });

  test('the unit passes systemd-analyze verify', () => {
    if (!install('systemd-analyze', 'systemd')) return;
    expect(verifyUnits(root, ['branchgate-agent.service'])).toBe('');
    const unit = path('usr/lib/systemd/system/branchgate-agent.service');
    const text = readFileSync(unit, 'utf8');
    writeFileSync(unit, text.replace('ExecStart=', 'ExecStart=/missing').replace('UMask=', 'UMsk='));
    expect(verifyUnits(root, ['branchgate-agent.service'])).toMatch(/UMsk.*missing/s);
    writeFileSync(unit, text);
  });

  test.runIf(IS_NIGHTLY)(
    'keeps the settings of the operator, and a purge removes what it made but no database',
    async () => {
      writeFileSync(path('etc/branchgate/agent.env'), 'GATEWAY_URL=https://gateway.example.com\n');
      mkdirSync(path('var/lib/branchgate/data'), { recursive: true });
      writeFileSync(path('var/lib/branchgate/data/PG_VERSION'), '18\n');
      for (const name of ['host.json', 'run.json']) writeFileSync(path(`var/lib/branchgate/${name}`), '{}');
      for (const name of ['rules', 'pooler', 'extensions']) mkdirSync(path(`var/lib/branchgate/${name}`));
      await dpkg('--install', file);
      expect(read('etc/branchgate/agent.env')).toContain('gateway.example.com');

      await dpkg('--remove', 'branchgate-agent');
      expect(existsSync(path('opt/branchgate'))).toBe(false);
      expect(existsSync(path('etc/branchgate/agent.env'))).toBe(true);
      await dpkg('--purge', 'branchgate-agent');
      const left = globSync('**', { cwd: root, exclude: ['var/lib/dpkg'] }).filter((name) =>
        existsSync(path(name)),
      );
      expect(left.sort()).toEqual([
        '.',
        'opt',
        'var',
        'var/lib',
        'var/lib/branchgate',
        'var/lib/branchgate/data',
        'var/lib/branchgate/data/PG_VERSION',
      ]);
    },
  );

  test('a purge of a joined host keeps the files that both servers include', async () => {
    await dpkg('--install', file);
    mkdirSync(path('var/lib/branchgate/rules'), { recursive: true });
    writeFileSync(path('etc/branchgate/joined.json'), '{}');
    expect(await dpkg('--purge', 'branchgate-agent')).toContain("run 'branchgate-agent leave'");
    expect(existsSync(path('var/lib/branchgate/rules'))).toBe(true);
  });

  test.runIf(IS_NIGHTLY)('has the same bytes when it is made again', async () => {
    const again = await buildDebianPackage(join(folder, 'again'), { compression: 'none' });
    expect(sha256(again)).toBe(sha256(file));
  });

  test.runIf(IS_NIGHTLY)(
    'has no error for lintian, and the same bytes when it is compressed',
    async () => {
      if (!install('lintian')) return;
      const files = [];
      for (const name of ['one', 'other']) files.push(await buildDebianPackage(join(folder, name)));
      const words = ['--allow-root', '--fail-on', 'error,warning', files[0] ?? ''];
      expect(execFileSync('lintian', words, { encoding: 'utf8' })).toBe('');
      expect(new Set(files.map(sha256)).size).toBe(1);
      // Two compressions and a linter take a busy machine minutes.
    },
    1_200_000,
  );
});
