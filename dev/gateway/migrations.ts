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

/** Migrations before version 1.0.0 were replaced by one baseline, which cannot be applied to what they made. */
export const BEFORE_BASELINE =
  'the database was made before version 1.0.0, and nothing leads from there: delete it, and begin with a new one';

/**
 * Whether a database was made by other first migrations than those of this release.
 * @param applied names, none of an empty database
 * @param all names of this release, in their order
 */
export const isBeforeBaseline = (applied: readonly string[], [baseline]: readonly string[]): boolean =>
  applied.length > 0 && baseline !== undefined && !applied.includes(baseline);

/**
 * Applies the missing migrations in the order of their names, all or none: the local D1 runs the lines of a
 * call in one transaction. They are one call because each call from outside of a Worker takes milliseconds.
 * @throws Error `BEFORE_BASELINE`
 */
export async function applyMigrations(database: Database, dir: string): Promise<void> {
  await database.exec(inLines(BOOKKEEPING));
  const { results } = await database.prepare('SELECT name FROM d1_migrations').run<{ name: string }>();
  const applied = results.map(({ name }) => name);
  const all = readdirSync(dir)
    .filter((name) => name.endsWith('.sql'))
    .sort();
  if (isBeforeBaseline(applied, all)) throw new Error(BEFORE_BASELINE);
  const missing = all.filter((name) => !applied.includes(name));
  if (missing.length === 0) return;
  const migrations = missing.flatMap((name) => [
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
