import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'smol-toml';
import { expect, test } from 'vitest';

const ROOT = join(import.meta.dirname, '../..');
const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');

interface LockEntry {
  integrity?: string;
  link?: boolean;
  optional?: boolean;
  os?: string[];
  cpu?: string[];
  libc?: string[];
}

/**
 * Builds for platforms other than Linux with glibc on x64 or arm64, where neither edge nor agent is built or
 * run.
 */
const isForeignBuild = ({ optional, os = [], cpu = [], libc = ['glibc'] }: LockEntry) =>
  optional === true &&
  os.length > 0 &&
  !(os.includes('linux') && libc.includes('glibc') && cpu.some((name) => ['x64', 'arm64'].includes(name)));

test.each([
  'package-lock.json',
  'test/bench/peers/package-lock.json',
  'test/clients/packages/package-lock.json',
  'test/support/servers/package-lock.json',
])('every package of %s that is installed here has a checksum', (path) => {
  const { packages } = JSON.parse(read(path)) as { packages: Record<string, LockEntry> };
  const unchecked = Object.entries(packages)
    .filter(([name, entry]) => name !== '' && !entry.link && !entry.integrity && !isForeignBuild(entry))
    .map(([name]) => name);
  expect(unchecked).toEqual([]);
});

test('the Worker has no address under workers.dev', () => {
  expect(parse(read('wrangler.toml')).workers_dev).toBe(false);
});
