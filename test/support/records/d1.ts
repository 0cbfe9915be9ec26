import { join } from 'node:path';
import type { Miniflare } from 'miniflare';
import { applyMigrations } from '../../../dev/gateway/migrations.ts';
import { remoteD1 } from '../worker/remote-bindings.ts';
import { startWorker } from '../worker/worker.ts';

const MIGRATIONS = join(import.meta.dirname, '../../../edge/database/migrations');

/** The D1 of a Worker that has one under this name, with the migrations of a folder applied. */
export async function migratedD1(
  worker: Miniflare,
  name = 'DB',
  migrations = MIGRATIONS,
): Promise<D1Database> {
  const binding = remoteD1(worker, name);
  await applyMigrations(binding, migrations);
  return binding;
}

/** How many databases a workerd has. */
const DATABASES = 16;
/** A workerd that runs until the process ends, which Miniflare sees to. */
let worker: Miniflare | undefined;
/** Names of its databases that no file has had. */
let unused: string[] = [];

/** A real, empty D1 in workerd, which the files of a process share. */
export async function startD1(migrations?: string): Promise<D1Database> {
  if (!worker || unused.length === 0) {
    const names = Array.from({ length: DATABASES }, (_, n) => `DB${n}`);
    await worker?.dispose();
    worker = startWorker('export default { fetch: () => new Response() }', { d1Databases: names });
    unused = names;
  }
  const [name = ''] = unused.splice(0, 1);
  return migratedD1(worker, name, migrations);
}
