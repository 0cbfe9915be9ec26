import type { paths } from './api.ts';

type Path = keyof paths;

/** The body of the successful GET of a path. */
type Success<P extends Path> = paths[P] extends {
  get: { responses: { 200: { content: { 'application/json': infer Body } } } };
}
  ? Body
  : never;

/** The record of a list: a body with one array and at most a cursor. */
type RecordIn<Body> = [Body[Exclude<keyof Body, 'next_cursor'>]] extends [readonly (infer R)[]] ? R : never;

/** The paths whose GET returns a list. */
export type ListPath = { [P in Path]: [RecordIn<Success<P>>] extends [never] ? never : P }[Path];

export type RecordOf<P extends ListPath> = RecordIn<Success<P>>;

/**
 * Every record of a list.
 * @param read gets the page at a cursor; null for the first page
 */
export async function* recordsOf<R>(
  read: (cursor: string | null) => Promise<Record<string, unknown>>,
): AsyncGenerator<R> {
  let cursor: string | null = null;
  do {
    const page = await read(cursor);
    yield* (Object.values(page).find(Array.isArray) ?? []) as R[];
    cursor = typeof page.next_cursor === 'string' ? page.next_cursor : null;
  } while (cursor !== null);
}
