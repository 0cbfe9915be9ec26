import { copyFileSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { build, type Plugin } from 'esbuild';
import { leaveOutUnused, REQUIRE } from './esbuild.ts';
import { ROOT } from './repository.ts';

/** The command line. */
export const MAIN_FILE = 'branchgate.mjs';
/** The tools for agents, which only `branchgate mcp` loads. */
const TOOLS_FILE = 'mcp.mjs';

const loadToolsFromFile: Plugin = {
  name: 'tools-file',
  setup({ onResolve }) {
    onResolve({ filter: /\/mcp-stdio\.ts$/ }, ({ kind }) =>
      kind === 'dynamic-import' ? { path: `./${TOOLS_FILE}`, external: true } : null,
    );
  },
};

const bundle = (entry: string, outfile: string, head: string) =>
  build({
    entryPoints: [join(ROOT, entry)],
    outfile,
    bundle: true,
    minify: true,
    // Errors are compared by the names of their classes.
    keepNames: true,
    platform: 'node',
    target: 'node20',
    format: 'esm',
    // An optional native client of `pg`, which is not used.
    external: ['pg-native'],
    plugins: [loadToolsFromFile, leaveOutUnused],
    banner: { js: head },
    logLevel: 'warning',
  });

/** Bundles the command line into two files of a folder, for Node 20 or later. */
export async function bundleCli(folder: string): Promise<void> {
  await Promise.all([
    bundle('cli/main.ts', join(folder, MAIN_FILE), `#!/usr/bin/env node\n${REQUIRE}`),
    bundle('cli/mcp-stdio.ts', join(folder, TOOLS_FILE), REQUIRE),
  ]);
}

if (import.meta.main) {
  const folder = join(ROOT, 'dist');
  await bundleCli(folder);
  // `npm pack` packs what is in the folder of the package.
  mkdirSync(join(ROOT, 'cli/dist'), { recursive: true });
  for (const name of [MAIN_FILE, TOOLS_FILE]) copyFileSync(join(folder, name), join(ROOT, 'cli/dist', name));
}
