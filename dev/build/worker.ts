import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { build } from 'esbuild';
import { parse } from 'smol-toml';
import { z } from 'zod';
import { buildConsole } from './console.ts';
import { leaveOutUnused } from './esbuild.ts';
import { ROOT } from './repository.ts';

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
    // The one for Node has no hashes of its own.
    alias: { otpauth: 'otpauth/dist/otpauth.node.mjs' },
    plugins: [leaveOutUnused],
    ...(deployed && { minify: true, sourcemap: 'linked' as const }),
    logLevel: 'warning',
  });
}

/** The part of wrangler's configuration that the local gateway uses; the rest concerns deployment. */
const WorkerConfiguration = z.object({
  name: z.string(),
  main: z.string(),
  compatibility_date: z.string(),
  compatibility_flags: z.array(z.string()).default([]),
  assets: z.object({
    binding: z.string(),
    not_found_handling: z.literal('single-page-application'),
    run_worker_first: z.array(z.string()),
  }),
  vars: z.record(z.string(), z.string()).default({}),
  d1_databases: z.tuple([
    z.object({ binding: z.string(), database_name: z.string(), migrations_dir: z.string() }),
  ]),
  durable_objects: z.object({ bindings: z.array(z.object({ name: z.string(), class_name: z.string() })) }),
});

export type WorkerConfiguration = z.output<typeof WorkerConfiguration>;

/** Reads `wrangler.toml`, so that the local gateway is configured like the deployed one. */
export const workerConfiguration = () =>
  WorkerConfiguration.parse(parse(readFileSync(join(ROOT, 'wrangler.toml'), 'utf8')));

if (import.meta.main) {
  // `wrangler deploy` runs it, and uploads the console from the folder that `[assets]` names.
  await Promise.all([
    bundleWorker(join(ROOT, workerConfiguration().main), { deployed: true }),
    buildConsole(join(ROOT, 'dist/console')),
  ]);
}
