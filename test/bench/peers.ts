import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { build } from 'esbuild';

const FOLDER = join(import.meta.dirname, 'peers');
const LOCK = join(FOLDER, 'package-lock.json');

/** What a benchmark compares with is no part of the product: it is installed when it is first needed. */
export function installPeers(): void {
  const installed = join(FOLDER, 'node_modules/.package-lock.json');
  if (existsSync(installed) && statSync(installed).mtimeMs >= statSync(LOCK).mtimeMs) return;
  execFileSync('npm', ['ci', '--ignore-scripts'], { cwd: FOLDER, stdio: 'inherit' });
}

/** Versions of these peers by their names, as the lock has them. */
export function peerVersions(...names: string[]): Record<string, string> {
  const { packages } = JSON.parse(readFileSync(LOCK, 'utf8')) as {
    packages: Record<string, { version: string }>;
  };
  return Object.fromEntries(names.map((name) => [name, packages[`node_modules/${name}`]?.version ?? '']));
}

/** A file of an installed peer. @param path from its package's name on */
export const peerFile = (path: string): string => join(FOLDER, 'node_modules', path);

/** A Worker beside the peers, with what it imports. @param name of its file, without the ending */
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
