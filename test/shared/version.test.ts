import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { isOlder, VERSION } from '../../shared/version.ts';

test.each([
  ['1.0.0', '1.1.0', true],
  ['1.9.0', '1.10.0', true],
  ['0.9.9', '1.0.0', true],
  ['1.0.0', '1.0.0', false],
  ['1.1.0', '1.0.9', false],
  ['2.0.0', '1.9.9', false],
  ['1.0.0-rc.1', '1.0.0', false],
])('%s is older than %s: %s', (version, other, older) => {
  expect(isOlder(version, other)).toBe(older);
});

test('all packages have the version of the release, which the changelog begins with', () => {
  const read = (path: string) => readFileSync(join(import.meta.dirname, '../..', path), 'utf8');
  const versions = ['package.json', 'cli/package.json', 'client/package.json', 'vitest/package.json'].map(
    (path) => JSON.parse(read(path)).version,
  );
  versions.push(/^version = "(.+)"$/m.exec(read('python/pyproject.toml'))?.[1]);
  versions.push(/^## \[(\d.+?)\]/m.exec(read('CHANGELOG.md'))?.[1]);
  expect(versions).toEqual(Array(6).fill(VERSION));
});
