import { join } from 'node:path';
import { build } from 'esbuild';
import { ROOT } from './stack/repository.ts';

/** CommonJS parts of the bundle use `require`, which an ES module lacks. */
const HEAD = `import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);`;

/** Bundles the GitHub Action into one file for the Node of its runners. */
export async function bundleAction(file: string): Promise<void> {
  await build({
    entryPoints: [join(ROOT, 'action/main.ts')],
    outfile: file,
    bundle: true,
    platform: 'node',
    target: 'node24',
    format: 'esm',
    banner: { js: HEAD },
    logLevel: 'warning',
  });
}

if (import.meta.main) await bundleAction(join(ROOT, 'action/dist/action.mjs'));
