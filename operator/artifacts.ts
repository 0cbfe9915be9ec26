import { createHash } from 'node:crypto';
import { existsSync, globSync, readFileSync } from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import { parse } from 'smol-toml';
import { CommandError } from '../cli/exit-codes.ts';
import { buildConsole } from '../dev/build/console.ts';
import { ROOT } from '../dev/build/repository.ts';
import { bundleWorker, workerConfiguration } from '../dev/build/worker.ts';
import type { Deployment } from './deployment.ts';

/** What is deployed. */
export interface Artifacts {
  /** The Worker as one file. */
  worker: string;
  /** The folder of the console's static files. */
  console: string;
  /** The folder of D1's migrations. */
  migrations: string;
}

/** Where the build of this checkout puts them. */
export function artifactsOfCheckout(): Artifacts {
  const { main, d1_databases: databases } = workerConfiguration();
  return {
    worker: join(ROOT, main),
    console: join(ROOT, 'dist/console'),
    migrations: join(ROOT, databases[0].migrations_dir),
  };
}

/**
 * Builds the Worker and the console of this checkout.
 * @param folder of finished artifacts (`worker.mjs`, `console`, `migrations`), which are taken as they are
 */
export async function makeArtifacts(folder: string | undefined): Promise<Artifacts> {
  if (folder !== undefined) return finishedArtifacts(resolve(folder));
  const artifacts = artifactsOfCheckout();
  await Promise.all([bundleWorker(artifacts.worker, { deployed: true }), buildConsole(artifacts.console)]);
  return artifacts;
}

function finishedArtifacts(folder: string): Artifacts {
  const artifacts = {
    worker: join(folder, 'worker.mjs'),
    console: join(folder, 'console'),
    migrations: join(folder, 'migrations'),
  };
  const missing = Object.values(artifacts).filter((path) => !existsSync(path));
  if (missing.length > 0)
    throw new CommandError(
      'usage',
      `${missing.join(', ')} is missing. Give a folder of a release with --artifacts.`,
    );
  return artifacts;
}

export const migrationsOf = ({ migrations }: Artifacts): string[] =>
  globSync('*.sql', { cwd: migrations })
    .map((path) => basename(path))
    .sort();

/**
 * wrangler's configuration of a deployment: that of the repository, with the names of what was made. Settings
 * that were made in the dashboard stay.
 */
export function wranglerConfiguration(deployment: Deployment, artifacts: Artifacts): object {
  const { build: _, ...repository } = parse(readFileSync(join(ROOT, 'wrangler.toml'), 'utf8'));
  const { vars, d1_databases: databases } = workerConfiguration();
  return {
    ...repository,
    name: deployment.name,
    account_id: deployment.account_id,
    main: artifacts.worker,
    find_additional_modules: false,
    keep_vars: true,
    routes: [{ pattern: deployment.address, custom_domain: true }],
    assets: { ...(repository.assets as object), directory: artifacts.console },
    vars: { ...vars, ...deployment.vars },
    d1_databases: [
      {
        ...databases[0],
        database_name: deployment.name,
        // A database that is still to be made has this ID in a dry run.
        database_id: deployment.database_id ?? '00000000-0000-0000-0000-000000000000',
        migrations_dir: artifacts.migrations,
      },
    ],
  };
}

/**
 * Of everything that `wrangler deploy` uploads. The same sources and settings have the same digest on each
 * machine.
 */
export function digestOf(deployment: Deployment, artifacts: Artifacts): string {
  const hash = createHash('sha256');
  const add = (name: string, content: string | Buffer) =>
    hash.update(`${name}\0${content.length}\0`).update(content);
  const paths = { worker: 'worker.mjs', console: 'console', migrations: 'migrations' };
  add('configuration', JSON.stringify(wranglerConfiguration(deployment, paths)));
  add('worker', readFileSync(artifacts.worker));
  const files = globSync('**/*', { cwd: artifacts.console, withFileTypes: true }).filter((entry) =>
    entry.isFile(),
  );
  for (const path of files.map((entry) => join(entry.parentPath, entry.name)).sort())
    add(path.slice(dirname(artifacts.console).length), readFileSync(path));
  return hash.digest('hex');
}
