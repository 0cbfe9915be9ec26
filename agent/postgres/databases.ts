import { z } from 'zod';
import { buildDatabaseName, MANAGED_DATABASE } from '../../shared/branch/database-name.ts';
import { identifier, type Queryable } from './connect.ts';
import { sqlState } from './postgres-failure.ts';

/** The owner of a database: the JSON of its COMMENT, which no tenant can write. */
const Mark = z.strictObject({ branch_id: z.uuid(), project_id: z.uuid(), job_id: z.uuid() });
export type Mark = z.output<typeof Mark>;

export interface FoundDatabase {
  name: string;
  mark: Mark | null;
  /** A crash left it half-dropped. It can only be dropped again. */
  interrupted: boolean;
}

const BUILD_DATABASE = new RegExp(`^${buildDatabaseName('')}[0-9a-f]{32}$`);

/** Databases of tenants, finalized or not. */
export async function readDatabases(db: Queryable, names?: readonly string[]): Promise<FoundDatabase[]> {
  const { rows } = await db.query<{ name: string; comment: string | null; interrupted: boolean }>(
    `SELECT datname AS name, shobj_description(oid, 'pg_database') AS comment, datconnlimit = -2 AS interrupted
     FROM pg_database WHERE $1::text[] IS NULL OR datname = ANY ($1) ORDER BY datname`,
    [names ?? null],
  );
  return rows
    .filter(({ name }) => MANAGED_DATABASE.test(name) || BUILD_DATABASE.test(name))
    .map(({ name, comment, interrupted }) => ({ name, interrupted, mark: readMark(comment) }));
}

function readMark(comment: string | null): Mark | null {
  try {
    return Mark.parse(JSON.parse(comment ?? 'null'));
  } catch {
    return null;
  }
}

export const markText = ({ branch_id, project_id, job_id }: Mark) =>
  JSON.stringify({ branch_id, project_id, job_id } satisfies Mark);

/** Ends the database's sessions and drops it. It is no error if it does not exist. */
export async function dropDatabase(db: Queryable, name: string): Promise<void> {
  // A concurrent drop by another session makes this one fail in spite of IF EXISTS.
  await db.query(`DROP DATABASE IF EXISTS ${identifier(name)} WITH (FORCE)`).catch((error) => {
    if (sqlState(error) !== '3D000') throw error;
  });
}
