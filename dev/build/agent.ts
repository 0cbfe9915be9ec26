import { readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { build } from 'esbuild';
import { sha256Of } from '../../agent/upgrade/program-file.ts';
import { leaveOutUnused, REQUIRE } from './esbuild.ts';
import { ROOT } from './repository.ts';

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
    plugins: [leaveOutUnused],
    logLevel: 'warning',
  });
}

if (import.meta.main) {
  // For installation on a database host, with its checksum for `upgrade`.
  const file = join(ROOT, 'dist/branchgate-agent.mjs');
  await bundleAgent(file);
  writeFileSync(`${file}.sha256`, `${sha256Of(readFileSync(file))}  ${basename(file)}\n`);
}
