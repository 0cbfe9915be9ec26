import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { REPOSITORY, ROOT } from '../../dev/build/repository.ts';
import { tagRelease } from '../../dev/build/tag-release.ts';
import { VERSION } from '../../shared/version.ts';

/** What a registry refuses, or lists without a way back to its sources. */

const folder = mkdtempSync(join(tmpdir(), 'branchgate-publishable-'));
afterAll(() => rmSync(folder, { recursive: true }));
const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const listed = (...patterns: string[]) =>
  execFileSync('git', ['ls-files', ...patterns], { cwd: ROOT, encoding: 'utf8' })
    .trim()
    .split('\n');

interface Manifest {
  name?: string;
  version?: string;
  license?: string;
  private?: boolean;
  description?: string;
  homepage?: string;
  repository?: { url?: string; directory?: string };
  engines?: { node?: string };
  scripts?: { prepack?: string };
}

/** The rules of npm for a package with provenance, and of its page. @returns the faults; empty if it can be published */
function npmFaults(directory: string, manifest: Manifest, files: readonly string[]): string[] {
  const { repository, homepage = '', scripts } = manifest;
  const rules: [boolean, string][] = [
    [manifest.private !== true, 'private'],
    [/^(?:@branchgate\/)?[a-z-]+$/.test(manifest.name ?? ''), 'name'],
    [manifest.version === VERSION, 'version'],
    [manifest.license === 'Apache-2.0', 'license'],
    [(manifest.description ?? '') !== '', 'description'],
    // Provenance names the repository of the workflow, and npm compares it with this field.
    [repository?.url === `git+${REPOSITORY}.git`, 'repository'],
    [repository?.directory === directory, 'directory'],
    [homepage.startsWith(REPOSITORY), 'homepage'],
    [manifest.engines?.node === '>=20', 'engines'],
    [files.includes(`${directory}/README.md`), 'README.md'],
    [/^cp \.\.\/LICENSE \. && /.test(scripts?.prepack ?? ''), 'LICENSE'],
  ];
  return rules.filter(([holds]) => !holds).map(([, field]) => field);
}

const PACKAGES = listed(':(glob)*/package.json').map((path) => path.replace('/package.json', ''));
const FILES = listed('*/README.md');

test('the packages of the release are all packages of the repository', () => {
  const [, released = ''] = /NPM_PACKAGES = \[(.*)\]/.exec(read('dev/build/release.ts')) ?? [];
  expect(released.match(/\w+/g)?.sort()).toEqual(PACKAGES.sort());
});

test.each(PACKAGES)('npm accepts %s, and refuses or misplaces it without one of its fields', (directory) => {
  const manifest: Manifest = JSON.parse(read(`${directory}/package.json`));
  expect(npmFaults(directory, manifest, FILES)).toEqual([]);
  for (const field of ['name', 'version', 'license', 'description', 'repository', 'homepage', 'engines'])
    expect(npmFaults(directory, { ...manifest, [field]: undefined }, FILES)).toContain(field);
  expect(npmFaults(directory, { ...manifest, private: true }, FILES)).toEqual(['private']);
  expect(npmFaults(directory, { ...manifest, scripts: {} }, FILES)).toEqual(['LICENSE']);
  expect(npmFaults(directory, manifest, [])).toEqual(['README.md']);
});

test('PyPI gets a page, a license and the addresses of the plugin', () => {
  const project = read('python/pyproject.toml');
  for (const line of ['readme = "README.md"', 'license-files = ["LICENSE"]', `Homepage = "${REPOSITORY}"`])
    expect(project).toContain(line);
});

/** Addresses of GitHub in texts of the project, and the placeholder of an owner who is not known. */
function foreignAddresses(text: string): string[] {
  const own = REPOSITORY.replace('https://github.com/', '');
  const places = [
    ...text.matchAll(/\bOWNER\/branchgate\b/g),
    ...text.matchAll(/uses: ([\w-]+\/branchgate)(?=[/@])/g),
    ...text.matchAll(/--repo (\S+\/branchgate)\b/g),
    ...text.matchAll(/github\.com[/:]([\w-]+\/branchgate)\b/g),
  ];
  return places.map(([all, name = all]) => name).filter((name) => name !== own);
}

test('every text has the address of this repository, and none a placeholder', () => {
  const texts = listed('*.md', '*.yml', '*.json', '*.toml', '*.ts', '*.tsx').filter(
    (path) => !path.endsWith('publishable.test.ts'),
  );
  expect(texts.flatMap((path) => foreignAddresses(read(path)).map((name) => `${path}: ${name}`))).toEqual([]);
  expect(foreignAddresses('uses: OWNER/branchgate/action@v1.0.0')).not.toEqual([]);
  expect(foreignAddresses('uses: someone/branchgate/action@v1')).toEqual(['someone/branchgate']);
  expect(foreignAddresses('https://github.com/someone/branchgate')).toEqual(['someone/branchgate']);
});

test('the tags of a release have the built action, and the branch has not', () => {
  const root = join(folder, 'checkout');
  const dist = join(folder, 'dist');
  const git = (...words: string[]) => execFileSync('git', words, { cwd: root, encoding: 'utf8' });
  execFileSync('git', ['clone', '--quiet', '--no-local', '--depth=1', `file://${ROOT}`, root]);
  mkdirSync(join(dist, 'chunks'), { recursive: true });
  for (const name of ['action.mjs', 'post.mjs', 'chunks/shared.mjs'])
    writeFileSync(join(dist, name), `// ${name}\n`);

  const [whole = '', major = '', alone = ''] = tagRelease(root, dist);
  expect([whole, major, alone]).toEqual([`v${VERSION}`, `v${VERSION.split('.')[0]}`, `action/v${VERSION}`]);
  const archived = (tag: string, path: string) =>
    execFileSync('sh', ['-c', `git archive ${tag} ${path} | tar -t`], { cwd: root, encoding: 'utf8' });
  for (const tag of [whole, major]) {
    expect(archived(tag, 'action/dist')).toContain('action/dist/chunks/shared.mjs');
    expect(git('diff', '--name-only', 'HEAD', tag).trim().split('\n')).toEqual([
      'action/dist/action.mjs',
      'action/dist/chunks/shared.mjs',
      'action/dist/post.mjs',
    ]);
  }
  // GitHub runs what `action.yml` names, beside it.
  const runs = [...read('action/action.yml').matchAll(/(?:main|post): (\S+)/g)].map(([, path]) => path);
  expect(runs).toEqual(['dist/action.mjs', 'dist/post.mjs']);
  expect(archived(alone, '.').split('\n')).toEqual(
    expect.arrayContaining([...runs, 'action.yml', 'README.md', 'LICENSE']),
  );
  expect(git('status', '--porcelain')).toBe('');
  const commits = git('rev-parse', whole, alone);
  tagRelease(root, dist);
  expect(git('rev-parse', whole, alone)).toBe(commits);
});
