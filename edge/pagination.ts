import { and, asc, desc, eq, gt, lt, or } from 'drizzle-orm';
import type { SQLiteColumn } from 'drizzle-orm/sqlite-core';
import { z } from 'zod';

const PAGE_DEFAULT = 50;
const PAGE_MAX = 100;

/** Opaque to clients: creation time and id of the last record of a page. */
const Cursor = z
  .string()
  .transform((text, context) => {
    try {
      const [createdAt, id] = z.tuple([z.int(), z.uuid()]).parse(JSON.parse(atob(text)));
      return { createdAt: new Date(createdAt), id };
    } catch {
      context.addIssue({ code: 'custom', message: 'Invalid cursor: use next_cursor of this list.' });
      return z.NEVER;
    }
  })
  .meta({ description: 'The `next_cursor` of the previous page; omit it for the first page.' });

/** Query parameters of every list. */
export const PageQuery = z.strictObject({
  limit: z.coerce
    .number()
    .int()
    .min(1)
    .max(PAGE_MAX)
    .default(PAGE_DEFAULT)
    .meta({ description: 'Number of records per page.' }),
  cursor: Cursor.optional(),
});
export type PageQuery = z.output<typeof PageQuery>;

interface Keyset {
  createdAt: SQLiteColumn;
  id: SQLiteColumn;
}

const DIRECTIONS = {
  oldest_first: { order: asc, beyond: gt },
  newest_first: { order: desc, beyond: lt },
} as const;

/** The order of a list, and the condition that skips the records of earlier pages. */
export function keyset(table: Keyset, direction: keyof typeof DIRECTIONS, { cursor }: PageQuery) {
  const { order, beyond } = DIRECTIONS[direction];
  return {
    orderBy: [order(table.createdAt), order(table.id)],
    beyond:
      cursor &&
      or(
        beyond(table.createdAt, cursor.createdAt),
        and(eq(table.createdAt, cursor.createdAt), beyond(table.id, cursor.id)),
      ),
  };
}

/** The response schema of a list. */
export const pageOf = <N extends string, R extends z.ZodType>(name: N, record: R) =>
  z.strictObject({
    [name]: z.array(record),
    next_cursor: z
      .string()
      .nullable()
      .meta({ description: 'The `cursor` of the next page; null on the last page.' }),
  } as { [K in N]: z.ZodArray<R> } & { next_cursor: z.ZodNullable<z.ZodString> });

/**
 * Cuts rows to one page and derives the next cursor.
 * @param rows one more than the limit, if there are that many
 */
export function cutPage<R extends { createdAt: Date; id: string }>(rows: R[], { limit }: PageQuery) {
  const page = rows.slice(0, limit);
  const last = page.at(-1);
  const more = rows.length > limit && last;
  return { page, next_cursor: more ? btoa(JSON.stringify([last.createdAt.getTime(), last.id])) : null };
}
