import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { build } from 'esbuild';

const FOLDER = join(import.meta.dirname, 'peers');
const LOCK = join(FOLDER, 'package-lock.json');

/**
 * Installs the packages that benchmarks compare with. They are no part of the product, so this happens on
 * demand.
 */
export function installPeers(): void {
  const installed = join(FOLDER, 'node_modules/.package-lock.json');
  if (existsSync(installed) && statSync(installed).mtimeMs >= statSync(LOCK).mtimeMs) return;
  execFileSync('npm', ['ci', '--ignore-scripts'], { cwd: FOLDER, stdio: 'inherit' });
}

/** Versions of these peers by name, from the lock file. */
export function peerVersions(...names: string[]): Record<string, string> {
  const { packages } = JSON.parse(readFileSync(LOCK, 'utf8')) as {
    packages: Record<string, { version: string }>;
  };
  return Object.fromEntries(names.map((name) => [name, packages[`node_modules/${name}`]?.version ?? '']));
}

/** @returns a file of an installed peer. @param path starts with the package's name */
export const peerFile = (path: string): string => join(FOLDER, 'node_modules', path);

/** Bundles a Worker next to the peers with its imports. @param name of its file, without the extension */
export async function bundlePeer(name: string): Promise<string> {
  const { outputFiles } = await build({
    entryPoints: [join(FOLDER, `${name}.mjs`)],
    bundle: true,
    write: false,
    format: 'esm',
    target: 'es2023',
    conditions: ['workerd'],
    external: ['cloudflare:*', 'node:*'],
  });
  return outputFiles.map(({ text }) => text).join('');
}
