import { join } from 'node:path';
import { build } from 'esbuild';
import { ROOT } from './repository.ts';

/** CommonJS parts of the bundle use `require`, which an ES module lacks. */
const REQUIRE =
  "import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);";

/** Bundles the agent into one file for Node 22 or later. @param root of its sources */
export async function bundleAgent(file: string, root = ROOT): Promise<void> {
  await build({
    entryPoints: [join(root, 'agent/main.ts')],
    outfile: file,
    bundle: true,
    platform: 'node',
    target: 'node22',
    format: 'esm',
    banner: { js: REQUIRE },
    // An optional native client of `pg`, which is not used.
    external: ['pg-native'],
    logLevel: 'warning',
  });
}
