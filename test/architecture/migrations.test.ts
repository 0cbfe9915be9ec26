import { globSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { describe, expect, test } from 'vitest';

/**
 * A migration runs before the code that needs it, so the gateway before it has to work with its schema: a
 * migration only adds. What nothing uses any more is removed by a later one, which says since when:
 * `-- Unused since 0007_racks: <what used it>` above the statement names an earlier migration that was
 * released.
 */

const FOLDER = join(import.meta.dirname, '../../edge/database/migrations');
const BREAKPOINT = '--> statement-breakpoint';
const NOTE = /^-- Unused since (\d{4}_[a-z0-9-_]+): \S/m;

interface Migration {
  name: string;
  statements: string[];
}

const migrations: Migration[] = globSync('*.sql', { cwd: FOLDER })
  .sort()
  .map((file) => ({
    name: basename(file, '.sql'),
    statements: readFileSync(join(FOLDER, file), 'utf8').split(BREAKPOINT),
  }));

/** Without comments, so that none hides a statement or looks like one. */
const codeOf = (statement: string) =>
  statement
    .replaceAll(/^\s*--.*$/gm, '')
    .replaceAll(/\/\*.*?\*\//gs, '')
    .trim();

const ADDITIONS = [
  /^CREATE TABLE `/i,
  /^CREATE INDEX `/i,
  /^CREATE TRIGGER `/i,
  /^ALTER TABLE `\w+` ADD (?:COLUMN )?`/i,
  /^INSERT INTO `/i,
  /^UPDATE `/i,
];
const UNIQUE_INDEX = /^CREATE UNIQUE INDEX `\w+` ON `(\w+)`/i;

/** A unique index of a table that the gateway before writes into could refuse its rows. A table that is made again has its index again. */
function isOfNewTable(code: string, { statements }: Migration): boolean {
  const table = UNIQUE_INDEX.exec(code)?.[1];
  return statements.some((other) =>
    [table, `__new_${table}`].some((name) => codeOf(other).startsWith(`CREATE TABLE \`${name}\``)),
  );
}

/** Statements that the gateway before the migration may not survive. */
const removals = (migration: Migration, earlier: readonly string[]) =>
  migration.statements.filter((statement) => {
    const code = codeOf(statement);
    if (code === '' || ADDITIONS.some((addition) => addition.test(code))) return false;
    if (UNIQUE_INDEX.test(code)) return !isOfNewTable(code, migration);
    return !earlier.includes(NOTE.exec(statement)?.[1] ?? '');
  });

test.each(migrations.map((migration, index) => [migration.name, index] as const))(
  '%s only adds, or removes what an earlier release does not use',
  (_, index) => {
    const migration = migrations[index];
    const earlier = migrations.slice(0, index).map(({ name }) => name);
    expect(migration && removals(migration, earlier)).toEqual([]);
  },
);

describe('the rule', () => {
  const found = (...statements: string[]) => removals({ name: '0002_new', statements }, ['0001_old']);

  test.each([
    'DROP TABLE `hosts`;',
    'ALTER TABLE `hosts` DROP COLUMN `name`;',
    'ALTER TABLE `hosts` RENAME COLUMN `name` TO `title`;',
    'ALTER TABLE `__new_hosts` RENAME TO `hosts`;',
    'DROP INDEX `hosts_name_unique`;',
    'DELETE FROM `hosts`;',
    'CREATE UNIQUE INDEX `hosts_port` ON `hosts` (`direct_port`);',
    '-- Unused since 0003_later: nothing\nDROP TABLE `hosts`;',
    '-- Unused since 0001_old:\nDROP TABLE `hosts`;',
    '/* Unused since 0001_old: x */ DROP TABLE `hosts`;',
  ])('finds %s', (statement) => {
    expect(found(statement)).toEqual([statement]);
  });

  test.each([
    ['-- Unused since 0001_old: the first kind of host\nDROP TABLE `hosts`;'],
    ['CREATE TABLE `racks` (`id` text);', 'CREATE UNIQUE INDEX `racks_once` ON `racks` (`id`);'],
    ['CREATE TABLE `__new_hosts` (`id` text);', 'CREATE UNIQUE INDEX `hosts_id` ON `hosts` (`id`);'],
    ['ALTER TABLE `hosts` ADD `rack` text;', "-- It was so.\nUPDATE `hosts` SET `rack` = 'a';"],
  ])('admits %s', (...statements) => {
    expect(found(...statements)).toEqual([]);
  });

  test('only the newest migration has a snapshot: that is what the next one is generated from', () => {
    const newest = migrations.at(-1)?.name.slice(0, 4);
    expect(globSync('meta/*_snapshot.json', { cwd: FOLDER })).toEqual([`meta/${newest}_snapshot.json`]);
  });

  test('reads all migrations', () => {
    expect(migrations[0]?.name).toBe('0000_baseline');
    expect(migrations[0]?.statements.length).toBeGreaterThan(100);
  });
});
