import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Miniflare } from 'miniflare';
import { startWorker } from '../worker/worker.ts';

const MIGRATIONS = join(import.meta.dirname, '../../../edge/database/migrations');

export interface TestD1 {
  binding: D1Database;
  stop(): Promise<void>;
}

/** Every statement of the migrations, one a line, which one call of D1 runs. */
const SCHEMA = readdirSync(MIGRATIONS)
  .filter((name) => name.endsWith('.sql'))
  .sort()
  .flatMap((name) => readFileSync(join(MIGRATIONS, name), 'utf8').split('--> statement-breakpoint'))
  .map((statement) =>
    statement
      .replaceAll(/^\s*--.*$/gm, '')
      .replaceAll(/\s*\n\s*/g, ' ')
      .trim(),
  )
  .filter(Boolean)
  .join('\n');

/** The D1 of a Worker that has one under this name, with the migrations applied. */
export async function migratedD1(worker: Miniflare, name = 'DB'): Promise<D1Database> {
  const binding = (await worker.getD1Database(name)) as unknown as D1Database;
  const isMigrated = await binding.prepare("select 1 from sqlite_master where name = 'projects'").first();
  if (!isMigrated) await binding.exec(SCHEMA);
  return binding;
}

/** A real, empty D1 in workerd. */
export async function startD1(): Promise<TestD1> {
  const worker = startWorker('export default { fetch: () => new Response() }', { d1Databases: ['DB'] });
  return { binding: await migratedD1(worker), stop: () => worker.dispose() };
}
