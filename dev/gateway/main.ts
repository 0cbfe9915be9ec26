import { mkdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { Miniflare } from 'miniflare';
import { z } from 'zod';
import { ROOT } from '../build/repository.ts';
import { type WorkerConfiguration, workerConfiguration } from '../build/worker.ts';
import { LOOPBACK } from '../stack/programs.ts';
import { applyMigrations } from './migrations.ts';

/**
 * Runs the gateway in workerd, with D1 and the Durable Objects on disk. Observed with the version that
 * package.json pins: alarms survive a SIGKILL of workerd, and an overdue one fires as soon as workerd runs
 * again; `CF-Connecting-IP` is the peer's address unless the client sends that header.
 */

const Settings = z.object({
  GATEWAY_PORT: z.coerce.number(),
  /** Address to listen on. The image listens on all, because its ports are published one by one. */
  GATEWAY_HOST: z.string().default(LOOPBACK),
  GATEWAY_STATE_DIR: z.string(),
  /** The Worker as one file. */
  GATEWAY_BUNDLE: z.string(),
  /** Folder of the console's static files. */
  GATEWAY_ASSETS: z.string(),
  /** For temporary files of this process and workerd. */
  GATEWAY_SCRATCH_DIR: z.string(),
  /** Between two runs of what `wrangler.toml` schedules. */
  CRON_SECONDS: z.coerce.number().positive().default(21_600),
  /** Port at which workerd can be profiled. Only a benchmark sets it: who reaches it can run code in the gateway. */
  GATEWAY_INSPECTOR_PORT: z.coerce.number().optional(),
});

// Only the user who started the stack can read the stored files.
process.umask(0o077);
const settings = Settings.parse(process.env);
// Removes the temporary files of a gateway that was killed.
rmSync(settings.GATEWAY_SCRATCH_DIR, { recursive: true, force: true });
mkdirSync(settings.GATEWAY_SCRATCH_DIR, { recursive: true });
process.env.TMPDIR = settings.GATEWAY_SCRATCH_DIR;
const configuration = workerConfiguration();
const { d1_databases: databases } = configuration;
const [database] = databases;

const miniflare = new Miniflare({
  host: settings.GATEWAY_HOST,
  port: settings.GATEWAY_PORT,
  resourcePersistencePath: settings.GATEWAY_STATE_DIR,
  // Otherwise Miniflare fetches a sample of Cloudflare's request properties from the internet.
  cf: false,
  telemetry: { enabled: false },
  // Otherwise Miniflare searches the user's home for other Workers of this machine.
  enableDevRegistry: false,
  logRequests: false,
  // Otherwise Miniflare starts another workerd, and the supervisor does not notice that the old one died.
  unsafeHandleRuntimeRestart: () => process.exit(1),
  ...(settings.GATEWAY_INSPECTOR_PORT && { inspectorPort: settings.GATEWAY_INSPECTOR_PORT }),
  workers: [worker(configuration, readFileSync(settings.GATEWAY_BUNDLE, 'utf8'))],
});
await miniflare.ready;
const d1 = await miniflare.getD1Database(database.binding);
await applyMigrations(d1, join(ROOT, database.migrations_dir)).catch((error: Error) => {
  // `npm start` shows the last line.
  console.error(error.message);
  process.exit(1);
});

const gateway = await miniflare.getWorker();
/** Miniflare runs no cron triggers by itself. */
const cron = setInterval(() => void gateway.scheduled({}).catch(() => {}), settings.CRON_SECONDS * 1000);

process.once('SIGTERM', async () => {
  clearInterval(cron);
  await miniflare.dispose();
  process.exit(0);
});
// The stack's process was killed.
process.once('disconnect', () => process.exit(1));
process.send?.('ready');

function worker(
  { name, vars, durable_objects, assets, ...configuration }: WorkerConfiguration,
  script: string,
) {
  const objects = durable_objects.bindings;
  return {
    config: {
      name,
      compatibilityDate: configuration.compatibility_date,
      compatibilityFlags: configuration.compatibility_flags,
      manifest: {
        mainModule: 'worker.js',
        modules: { 'worker.js': { type: 'esm' as const, contents: script } },
      },
      assets: {
        directory: settings.GATEWAY_ASSETS,
        notFoundHandling: assets.not_found_handling,
        runWorkerFirst: assets.run_worker_first,
        hasUserWorker: true,
      },
      exports: Object.fromEntries(
        objects.map((object) => [
          object.class_name,
          { type: 'durable-object' as const, storage: 'sqlite' as const },
        ]),
      ),
      env: {
        // A setting has the same name in the environment as at Cloudflare. The bindings below cannot be
        // overridden.
        ...textBindings({ ...vars, ...process.env }),
        [database.binding]: { type: 'd1' as const, id: database.database_name },
        [assets.binding]: { type: 'assets' as const },
        ...Object.fromEntries(
          objects.map((object) => [
            object.name,
            { type: 'durable-object' as const, worker: name, exportName: object.class_name },
          ]),
        ),
      },
    },
  };
}

function textBindings(variables: Record<string, string | undefined>) {
  const bindings: Record<string, { type: 'text'; value: string }> = {};
  for (const [name, value] of Object.entries(variables)) if (value) bindings[name] = { type: 'text', value };
  return bindings;
}
