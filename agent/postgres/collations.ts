import type { Queryable } from './connect.ts';

/**
 * Whether a row of `pg_database` was made with another version of its collation than the libraries of this machine
 * have. Its indexes of text may be wrong, and PostgreSQL refuses to clone it.
 */
export const IS_OUTDATED = `datcollversion IS NOT NULL
  AND datcollversion IS DISTINCT FROM pg_database_collation_actual_version(pg_database.oid)`;

/** Names of the databases with an outdated collation, in order. Those that nobody can connect to are clones of others. */
export async function readOutdatedCollations(db: Queryable): Promise<string[]> {
  const { rows } = await db.query<{ name: string }>(
    `SELECT datname AS name FROM pg_database WHERE ${IS_OUTDATED} ORDER BY datname`,
  );
  return rows.map(({ name }) => name);
}

/** What mends a database. PostgreSQL refuses the second statement in another database than the present one. */
export const collationRemedy = (database: string): string =>
  `REINDEX DATABASE "${database}"; ALTER DATABASE "${database}" REFRESH COLLATION VERSION`;
