import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** The part of D1's interface that is used here. Its own type is not available to Node programs. */
interface Database {
  prepare(query: string): Statement;
  batch(statements: Statement[]): Promise<unknown>;
}
interface Statement {
  bind(...values: unknown[]): Statement;
  run<Row>(): Promise<{ results: Row[] }>;
}

/** drizzle-kit's separator between the statements of a migration. */
const BREAKPOINT = '--> statement-breakpoint';

/** wrangler's own table, so that `wrangler d1 migrations` knows the applied migrations. */
const BOOKKEEPING = `CREATE TABLE IF NOT EXISTS d1_migrations (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT UNIQUE,
  applied_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL
)`;

/** Applies the missing migrations in the order of their names, each atomically. */
export async function applyMigrations(database: Database, dir: string): Promise<void> {
  await database.prepare(BOOKKEEPING).run();
  const { results } = await database.prepare('SELECT name FROM d1_migrations').run<{ name: string }>();
  const applied = new Set(results.map(({ name }) => name));
  const names = readdirSync(dir).filter((name) => name.endsWith('.sql'));
  for (const name of names.sort()) {
    if (applied.has(name)) continue;
    const statements = readFileSync(join(dir, name), 'utf8').split(BREAKPOINT);
    await database.batch([
      ...statements.map((statement) => database.prepare(statement)),
      database.prepare('INSERT INTO d1_migrations (name) VALUES (?)').bind(name),
    ]);
  }
}
