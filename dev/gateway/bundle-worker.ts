import { join } from 'node:path';
import { build } from 'esbuild';
import { englishOnly } from '../english-only.ts';
import { ROOT } from '../stack/repository.ts';

/** Bundles the Worker into one file that workerd runs. @param deployed smaller, and with a source map */
export async function bundleWorker(file: string, { deployed = false } = {}): Promise<void> {
  await build({
    entryPoints: [join(ROOT, 'edge/worker.ts')],
    outfile: file,
    bundle: true,
    format: 'esm',
    target: 'es2024',
    conditions: ['workerd', 'worker'],
    external: ['cloudflare:*', 'node:*'],
    plugins: [englishOnly],
    // Errors are compared by the names of their classes.
    ...(deployed && { minify: true, keepNames: true, sourcemap: 'linked' as const }),
    logLevel: 'warning',
  });
}
