import { join } from 'node:path';
import type { Miniflare } from 'miniflare';
import { applyMigrations } from '../../../dev/gateway/migrations.ts';
import { startWorker } from '../worker/worker.ts';
import { remoteD1 } from './remote-d1.ts';

const MIGRATIONS = join(import.meta.dirname, '../../../edge/database/migrations');

export interface TestD1 {
  binding: D1Database;
  stop(): Promise<void>;
}

/** The D1 of a Worker that has one under this name, with the migrations applied. */
export async function migratedD1(worker: Miniflare, name = 'DB'): Promise<D1Database> {
  const binding = remoteD1(worker, name);
  await applyMigrations(binding, MIGRATIONS);
  return binding;
}

/** A real, empty D1 in workerd. */
export async function startD1(): Promise<TestD1> {
  const worker = startWorker('export default { fetch: () => new Response() }', { d1Databases: ['DB'] });
  return { binding: await migratedD1(worker), stop: () => worker.dispose() };
}
