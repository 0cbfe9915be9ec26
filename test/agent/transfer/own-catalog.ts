import { join } from 'node:path';
import type pg from 'pg';
import { expect } from 'vitest';
import { catalogLines, differentLines } from '../../support/catalog-lines.ts';

/** Schemas that a copy has to keep, one of each construct. */
export const FOLDER = join(import.meta.dirname, 'schemas');

/** The next values of sequences, which it takes. */
export const NEXT_VALUES = `select relname::text as name, nextval(c.oid::regclass)::text as next from pg_class c join pg_namespace n on n.oid = relnamespace where relkind = 'S' and n.nspname !~ '^pg_' and n.nspname <> 'information_schema' order by relname collate "C"`;

/** What each database of a host has. */
const OF_HOST = /^\+ (?:routine pg_catalog\.|default privileges g_)/;

/**
 * Expects that both databases have the same objects and sequences, and ends the sessions.
 * @param except lines of objects that may differ
 */
export async function expectSameCatalogs(
  theirs: pg.Client,
  ours: pg.Client,
  { except, rights = false }: { except?: string | undefined; rights?: boolean } = {},
): Promise<void> {
  try {
    const there = await catalogLines(theirs, { values: true, rights });
    const here = await catalogLines(ours, { values: true, rights });
    expect(there.length).toBeGreaterThan(3);
    const different = differentLines(there, here).filter((line) => rights || !OF_HOST.test(line));
    expect(different.filter((line) => except === undefined || !line.includes(except))).toEqual([]);
  } finally {
    await theirs.end();
    await ours.end();
  }
}
