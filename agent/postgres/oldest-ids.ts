import type { Queryable } from './connect.ts';

/**
 * How many ids ago the oldest row was written that is not frozen yet. PostgreSQL refuses to give out further ids 3 million
 * before 2^31 (documentation, "Preventing Transaction ID Wraparound Failures").
 */
export interface OldestIds {
  transaction: number;
  multixact: number;
}

/** Autovacuum keeps the age near 200 million, and multixacts near 400. */
export const OLD_IDS = 1_000_000_000;

export async function readOldestIds(db: Queryable): Promise<OldestIds> {
  const { rows } = await db.query<OldestIds>(
    `SELECT max(age(datfrozenxid))::float8 AS transaction, max(mxid_age(datminmxid))::float8 AS multixact
     FROM pg_database`,
  );
  return rows[0] ?? { transaction: 0, multixact: 0 };
}
