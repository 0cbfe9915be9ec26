import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { makeRelease, notesOf, packAction } from '../../dev/build/release.ts';
import { sourceDate } from '../../dev/build/repository.ts';
import { makeArtifacts, migrationsOf } from '../../operator/artifacts.ts';
import { VERSION } from '../../shared/version.ts';
import { IS_DEBIAN, install } from '../support/debian.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';

const CHANGELOG = `# Changelog

## [Unreleased]

## [1.1.0] - 2027-01-01

### Added

- More.

## [1.0.0] - 2026-11-25

- The first.
`;

test('the notes of a release are its section of the changelog', () => {
  expect(notesOf(CHANGELOG, '1.1.0')).toBe('### Added\n\n- More.\n');
  expect(notesOf(CHANGELOG, '1.0.0')).toBe('- The first.\n');
  for (const version of ['1.2.0', '1.1', 'Unreleased'])
    expect(() => notesOf(CHANGELOG, version)).toThrow('CHANGELOG.md has nothing about');
});

test('an archive of a release has the same bytes again, and nothing of the machine that made it', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-release-'));
  try {
    const archive = join(folder, `branchgate-action-${VERSION}.tar.gz`);
    await packAction(folder);
    const before = readFileSync(archive);
    await packAction(folder);
    expect(before.equals(readFileSync(archive))).toBe(true);
    // The header of gzip has a time at offset 4, and no name if bit 3 of the flags at offset 3 is not set.
    expect([before.readUInt32LE(4), (before[3] ?? 0) & 8]).toEqual([0, 0]);
    const listing = execFileSync('tar', ['--list', '--verbose', '--utc', '--full-time', '-f', archive], {
      encoding: 'utf8',
    });
    const time = new Date(sourceDate() * 1000).toISOString().slice(0, 19).replace('T', ' ');
    for (const line of listing.trim().split('\n'))
      expect(line).toMatch(
        new RegExp(`^(drwxr-xr-x|-rw-r--r--|-rwxr-xr-x) 0/0 +\\d+ ${time} branchgate-action-`),
      );
  } finally {
    rmSync(folder, { recursive: true });
  }
});

const hasPython = () =>
  install('twine') && install('pyproject-build', 'python3-build', 'python3-setuptools', 'python3-wheel');

test.runIf(IS_NIGHTLY && IS_DEBIAN && hasPython())(
  'two builds of one commit have the same bytes, and what they contain can be used',
  async () => {
    const folder = mkdtempSync(join(tmpdir(), 'branchgate-release-'));
    try {
      const names = await makeRelease(folder, 'none');
      const sums = readFileSync(join(folder, 'SHA256SUMS'), 'utf8');
      expect(names).toEqual([
        'NOTES.md',
        expect.stringMatching(/^branchgate-1\.\d+\.\d+\.cdx\.json$/),
        `branchgate-${VERSION}.tgz`,
        `branchgate-action-${VERSION}.tar.gz`,
        `branchgate-agent-${VERSION}.mjs`,
        expect.stringMatching(/^branchgate-agent_.*_(amd64|arm64)\.deb$/),
        `branchgate-client-${VERSION}.tgz`,
        `branchgate-gateway-${VERSION}.tar.gz`,
        `branchgate-vitest-${VERSION}.tgz`,
        `pytest_branchgate-${VERSION}-py3-none-any.whl`,
        `pytest_branchgate-${VERSION}.tar.gz`,
        'SHA256SUMS',
      ]);
      execFileSync('sha256sum', ['--check', '--quiet', 'SHA256SUMS'], { cwd: folder });

      await makeRelease(folder, 'none');
      expect(readFileSync(join(folder, 'SHA256SUMS'), 'utf8')).toBe(sums);

      for (const name of names.filter((file) => file.endsWith('.tgz'))) {
        const files = execFileSync('tar', ['-tf', name], { cwd: folder, encoding: 'utf8' }).split('\n');
        expect(files).toEqual(expect.arrayContaining(['package/README.md', 'package/LICENSE']));
      }
      const plugin = names.filter((name) => name.startsWith('pytest_'));
      const checked = execFileSync('twine', ['check', '--strict', ...plugin], {
        cwd: folder,
        encoding: 'utf8',
      });
      expect(checked.match(/PASSED/g)).toHaveLength(2);
      const listed = execFileSync('python3', ['-m', 'zipfile', '-l', plugin[0] ?? ''], {
        cwd: folder,
        encoding: 'utf8',
      });
      for (const file of ['pytest_branchgate.py', 'LICENSE', 'entry_points.txt'])
        expect(listed).toContain(file);

      const unpack = (name: string) => execFileSync('tar', ['-xf', name], { cwd: folder });
      unpack(`branchgate-gateway-${VERSION}.tar.gz`);
      const artifacts = await makeArtifacts(join(folder, `branchgate-gateway-${VERSION}`));
      expect(migrationsOf(artifacts).length).toBeGreaterThan(0);
      unpack(`branchgate-${VERSION}.tgz`);
      const reported = (...words: string[]) =>
        execFileSync(process.execPath, words, { cwd: folder, encoding: 'utf8' }).trim();
      expect(reported('package/dist/branchgate.mjs', '--version')).toBe(VERSION);
      expect(reported(`branchgate-agent-${VERSION}.mjs`, '--version')).toBe(VERSION);
      const bill = JSON.parse(readFileSync(join(folder, `branchgate-${VERSION}.cdx.json`), 'utf8'));
      expect(bill).toMatchObject({ bomFormat: 'CycloneDX', metadata: { component: { version: VERSION } } });
      expect(bill.components.map(({ name }: { name: string }) => name)).toEqual(
        expect.arrayContaining(['hono', 'react', 'pg']),
      );
    } finally {
      rmSync(folder, { recursive: true });
    }
  },
);
