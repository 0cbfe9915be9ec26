import { join } from 'node:path';
import { build } from 'esbuild';
import { REQUIRE } from './esbuild.ts';
import { ROOT } from './repository.ts';

/**
 * Bundles the GitHub Action for the Node of its runners: its main step, and the one at the end of the job.
 */
export async function bundleAction(folder: string): Promise<void> {
  await build({
    entryPoints: { action: join(ROOT, 'action/main.ts'), post: join(ROOT, 'action/post.ts') },
    outdir: folder,
    outExtension: { '.js': '.mjs' },
    bundle: true,
    splitting: true,
    platform: 'node',
    target: 'node24',
    format: 'esm',
    banner: { js: REQUIRE },
    logLevel: 'warning',
  });
}

if (import.meta.main) await bundleAction(join(ROOT, 'action/dist'));
