import { copyFileSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { build } from 'esbuild';
import { ROOT } from './stack/repository.ts';

/** CommonJS parts of the bundle use `require`, which an ES module lacks. */
const HEAD = `#!/usr/bin/env node
import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);`;

/** Bundles the command line into one file for Node 20 or later. */
export async function bundleCli(file: string): Promise<void> {
  await build({
    entryPoints: [join(ROOT, 'cli/main.ts')],
    outfile: file,
    bundle: true,
    minify: true,
    platform: 'node',
    target: 'node20',
    format: 'esm',
    banner: { js: HEAD },
    logLevel: 'warning',
  });
}

if (import.meta.main) {
  const file = join(ROOT, 'dist/branchgate.mjs');
  await bundleCli(file);
  // `npm pack` packs what is in the folder of the package.
  mkdirSync(join(ROOT, 'cli/dist'), { recursive: true });
  copyFileSync(file, join(ROOT, 'cli/dist/branchgate.mjs'));
}
