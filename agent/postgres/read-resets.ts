import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import type { Queryable } from './connect.ts';

const PREFIX = buildDatabaseName('');

/**
 * The jobs of resets whose clones are not swapped in. The job of any other clone is that of a branch, which is stored
 * before the clone is made.
 */
export async function readResets(db: Queryable): Promise<string[]> {
  const { rows } = await db.query<{ job_id: string }>(
    `SELECT substr(datname, ${PREFIX.length + 1})::uuid AS job_id FROM pg_database
     WHERE datname ~ '^${PREFIX}[0-9a-f]{32}$'
     EXCEPT SELECT job_id FROM branch ORDER BY job_id`,
  );
  return rows.map(({ job_id }) => job_id);
}
