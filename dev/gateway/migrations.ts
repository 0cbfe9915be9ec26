import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** The part of D1's interface that is used here. Its own type is not available to Node programs. */
interface Database {
  /** Runs lines of one statement each. */
  exec(lines: string): Promise<unknown>;
  prepare(query: string): { run<Row>(): Promise<{ results: Row[] }> };
}

/** drizzle-kit's separator between the statements of a migration. */
const BREAKPOINT = '--> statement-breakpoint';

/** wrangler's own table, so that `wrangler d1 migrations` knows the applied migrations. */
const BOOKKEEPING = `CREATE TABLE IF NOT EXISTS d1_migrations (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT UNIQUE,
  applied_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL
)`;

/**
 * Applies the missing migrations in the order of their names, all or none: the local D1 runs the lines of a
 * call in one transaction. They are one call because each call from outside of a Worker takes milliseconds.
 */
export async function applyMigrations(database: Database, dir: string): Promise<void> {
  await database.exec(inLines(BOOKKEEPING));
  const { results } = await database.prepare('SELECT name FROM d1_migrations').run<{ name: string }>();
  const applied = new Set(results.map(({ name }) => name));
  const missing = readdirSync(dir).filter((name) => name.endsWith('.sql') && !applied.has(name));
  if (missing.length === 0) return;
  const migrations = missing
    .sort()
    .flatMap((name) => [
      inLines(readFileSync(join(dir, name), 'utf8')),
      `INSERT INTO d1_migrations (name) VALUES ('${name}')`,
    ]);
  await database.exec(migrations.join('\n'));
}

/** Each statement in a line of its own, without comments. */
const inLines = (sql: string): string =>
  sql
    .split(BREAKPOINT)
    .map((statement) =>
      statement
        .replaceAll(/^\s*--.*$/gm, '')
        .replaceAll(/\s*\n\s*/g, ' ')
        .trim(),
    )
    .filter(Boolean)
    .join('\n');
