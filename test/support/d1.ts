import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { convertV4MiniflareOptions, Miniflare } from 'miniflare';

const MIGRATIONS = join(import.meta.dirname, '../../edge/database/migrations');

export interface TestD1 {
  binding: D1Database;
  stop(): Promise<void>;
}

/** A real, empty D1 in workerd, with the migrations applied. */
export async function startD1(): Promise<TestD1> {
  const miniflare = new Miniflare(
    convertV4MiniflareOptions({
      modules: true,
      script: 'export default { fetch: () => new Response() }',
      compatibilityDate: '2026-11-01',
      d1Databases: ['DB'],
      telemetry: { enabled: false },
    }),
  );
  const binding = (await miniflare.getD1Database('DB')) as unknown as D1Database;
  const files = (await readdir(MIGRATIONS)).filter((name) => name.endsWith('.sql')).sort();
  for (const file of files) {
    const statements = (await readFile(join(MIGRATIONS, file), 'utf8')).split('--> statement-breakpoint');
    await binding.batch(statements.map((statement) => binding.prepare(statement)));
  }
  return { binding, stop: () => miniflare.dispose() };
}
