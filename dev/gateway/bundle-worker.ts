import { join } from 'node:path';
import { build } from 'esbuild';
import { ROOT } from '../stack/repository.ts';
import { workerConfiguration } from './worker-configuration.ts';

/** Bundles the Worker of `wrangler.toml` into one file that workerd runs. */
export async function bundleWorker(file: string): Promise<void> {
  await build({
    entryPoints: [join(ROOT, workerConfiguration().main)],
    outfile: file,
    bundle: true,
    format: 'esm',
    target: 'es2024',
    conditions: ['workerd', 'worker'],
    external: ['cloudflare:*', 'node:*'],
    logLevel: 'warning',
  });
}
