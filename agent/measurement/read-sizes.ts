import type { Queryable } from '../postgres/connect.ts';
import { sqlState } from '../postgres/postgres-failure.ts';

/** What prevents sizing one database: `query_canceled`, here by `statement_timeout`; `undefined_object` if it was just dropped. */
const OF_ONE_DATABASE: unknown[] = ['57014', '42704'];

/**
 * Sizes in bytes by oid. A database is missing when it was just dropped, or when its number of files makes sizing it
 * exceed the statement timeout: a tenant that creates them must not prevent the measurement of others.
 */
export async function readSizes(
  session: Queryable,
  databases: readonly string[],
): Promise<Map<string, number>> {
  try {
    const { rows } = await session.query<{ oid: string; bytes: string | null }>(
      'SELECT oid::text, pg_database_size(oid) AS bytes FROM pg_database WHERE oid = ANY ($1::oid[])',
      [databases],
    );
    return new Map(rows.flatMap(({ oid, bytes }) => (bytes === null ? [] : [[oid, Number(bytes)]])));
  } catch (error) {
    if (!OF_ONE_DATABASE.includes(sqlState(error))) throw error;
    const sizes: [string, number][] = [];
    if (databases.length > 1)
      for (const database of databases) sizes.push(...(await readSizes(session, [database])));
    return new Map(sizes);
  }
}
