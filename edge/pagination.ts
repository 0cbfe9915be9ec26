import { and, asc, desc, eq, gt, lt, or } from 'drizzle-orm';
import type { SQLiteColumn } from 'drizzle-orm/sqlite-core';
import { z } from 'zod';

const PAGE_DEFAULT = 50;
const PAGE_MAX = 100;

/** Opaque to clients: moment and id of the last record of a page. */
const Cursor = z.string().transform((text, context) => {
  try {
    const [moment, id] = z.tuple([z.int(), z.uuid()]).parse(JSON.parse(atob(text)));
    return { createdAt: new Date(moment), id };
  } catch {
    context.addIssue({ code: 'custom', message: 'not a cursor of this list' });
    return z.NEVER;
  }
});

/** Query parameters of every list. */
export const PageQuery = z.strictObject({
  limit: z.coerce.number().int().min(1).max(PAGE_MAX).default(PAGE_DEFAULT),
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

/** Order of a list, and the condition that leaves out what the pages before had. */
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

/** The answer of a list. */
export const pageOf = <N extends string, R extends z.ZodType>(name: N, record: R) =>
  z.strictObject({
    [name]: z.array(record),
    next_cursor: z.string().nullable().meta({ description: 'For the next page; null on the last one.' }),
  } as { [K in N]: z.ZodArray<R> } & { next_cursor: z.ZodNullable<z.ZodString> });

/** Cuts the page off one row more than its limit, and names where the next one starts. */
export function cutPage<R extends { createdAt: Date; id: string }>(rows: R[], { limit }: PageQuery) {
  const page = rows.slice(0, limit);
  const last = page.at(-1);
  const more = rows.length > limit && last;
  return { page, next_cursor: more ? btoa(JSON.stringify([last.createdAt.getTime(), last.id])) : null };
}
