import { join } from 'node:path';
import { build } from 'esbuild';
import { ROOT } from './repository.ts';

/** CommonJS parts of the bundle look for `require`, which an ES module lacks. */
const REQUIRE =
  "import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);";

/** Bundles the agent into one file that any Node from version 20 runs. */
export async function bundleAgent(file: string): Promise<void> {
  await build({
    entryPoints: [join(ROOT, 'agent/main.ts')],
    outfile: file,
    bundle: true,
    platform: 'node',
    target: 'node22',
    format: 'esm',
    banner: { js: REQUIRE },
    // An optional native client of `pg` that is not used.
    external: ['pg-native'],
    logLevel: 'warning',
  });
}
