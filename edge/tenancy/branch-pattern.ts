import { and, type SQL, sql } from 'drizzle-orm';
import type { SQLiteColumn } from 'drizzle-orm/sqlite-core';
import { z } from 'zod';
import { BRANCH_NAME_LENGTH } from '../../shared/branch/branch-name.ts';

/** Names of branches with at most one `*`, which stands for any number of characters. */
export const BranchPattern = z
  .string()
  .min(1)
  .max(BRANCH_NAME_LENGTH.max)
  .regex(/^[a-z0-9_-]*\*?[a-z0-9_-]*$/, 'only characters of branch names, and one *')
  .meta({ description: 'Names of branches; one `*` stands for any characters.', example: 'pr-*' });

const partsOf = (pattern: string) => {
  const [prefix = '', suffix] = pattern.split('*');
  return { prefix, suffix };
};

export function matchesPattern(pattern: string, name: string): boolean {
  const { prefix, suffix } = partsOf(pattern);
  if (suffix === undefined) return name === prefix;
  return name.length >= prefix.length + suffix.length && name.startsWith(prefix) && name.endsWith(suffix);
}

/** The same as a condition. GLOB is not used, because D1 limits its patterns to 50 bytes. */
export function whereMatches(pattern: string, name: SQLiteColumn): SQL | undefined {
  const { prefix, suffix } = partsOf(pattern);
  if (suffix === undefined) return sql`${name} = ${prefix}`;
  return and(
    sql`length(${name}) >= ${prefix.length + suffix.length}`,
    sql`substr(${name}, 1, ${prefix.length}) = ${prefix}`,
    suffix === '' ? undefined : sql`substr(${name}, ${-suffix.length}) = ${suffix}`,
  );
}
