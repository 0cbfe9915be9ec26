import { join } from 'node:path';
import type pg from 'pg';
import { expect } from 'vitest';
import { catalogLines, differentLines } from '../../support/catalog-lines.ts';

/** Schemas that a copy has to keep, one of each construct. */
export const FOLDER = join(import.meta.dirname, 'schemas');

/** Schemas with the constructs of public projects, in texts of our own. */
export const PUBLIC_SCHEMAS = 'code-forge django-library forum map rails-shop rest-service social-network'
  .split(' ')
  .map((name) => join(import.meta.dirname, `../../support/schemas/${name}.sql`));

/** Empties a source's database, for its owner `app`. */
export const EMPTY_SOURCE = `do $$ declare name text; begin
  for name in select nspname from pg_namespace where nspname !~ '^pg_' and nspname <> 'information_schema' loop execute format('drop schema %I cascade', name); end loop;
  end $$; create schema public authorization app`;

/** The next values of sequences, which it takes. */
export const NEXT_VALUES = `select relname::text as name, nextval(c.oid::regclass)::text as next from pg_class c join pg_namespace n on n.oid = relnamespace where relkind = 'S' and n.nspname !~ '^pg_' and n.nspname <> 'information_schema' order by relname collate "C"`;

/** Routines that each database of a host has, and rights, which only copies between hosts of one operator keep. */
const OF_HOST = /^(?:\+ routine pg_catalog\.|[-+] default privileges )/;

/**
 * Expects that both databases have the same objects and sequences, and ends the sessions.
 * @param except lines of objects that may differ
 */
export async function expectSameCatalogs(
  theirs: pg.Client,
  ours: pg.Client,
  { except, rights = false }: { except?: string | RegExp | undefined; rights?: boolean } = {},
): Promise<void> {
  try {
    const there = await catalogLines(theirs, { values: true, rights });
    const here = await catalogLines(ours, { values: true, rights });
    expect(there.length).toBeGreaterThan(3);
    const different = differentLines(there, here).filter((line) => rights || !OF_HOST.test(line));
    const isExcepted = (line: string) =>
      typeof except === 'string' ? line.includes(except) : except?.test(line) === true;
    expect(different.filter((line) => !isExcepted(line))).toEqual([]);
  } finally {
    await theirs.end();
    await ours.end();
  }
}
