import type { AgentSettings } from '../settings.ts';
import { identifier, literal, type Queryable } from './connect.ts';
import { readDatabases } from './databases.ts';
import { sqlState } from './postgres-failure.ts';

/** Another operation that alters the database holds it for milliseconds. */
const LOCKED_FOR_MS = 2_000;
const DATABASE_GONE = '3D000';

type Limits = Pick<AgentSettings, 'BRANCH_CONNECTIONS' | 'TEMP_FILE_LIMIT_MB'>;

/**
 * Settings of every tenant's database. Only a superuser may change them, so neither the owner nor a session can undo
 * them. PostgreSQL logs attempts to connect before it applies them.
 */
const databaseSettings = ({ TEMP_FILE_LIMIT_MB }: Limits): Record<string, string> => ({
  // Tenants choose the text and number of messages below FATAL.
  log_min_messages: 'fatal',
  temp_file_limit: `${TEMP_FILE_LIMIT_MB}MB`,
});

/** Statements that bound what the sessions of one database can take from other tenants. */
export function protectDatabase(limits: Limits, database: string): string {
  const name = identifier(database);
  const settings = Object.entries(databaseSettings(limits)).map(
    ([setting, value]) => `ALTER DATABASE ${name} SET ${setting} = ${literal(value)}`,
  );
  return [...settings, `ALTER DATABASE ${name} CONNECTION LIMIT ${limits.BRANCH_CONNECTIONS}`].join('; ');
}

/**
 * Applies the present limits to the branches that an earlier release, or an agent with other settings, has made.
 * Sessions that are open already keep their settings.
 * @throws the first failure, after all databases were tried
 */
export async function protectDatabases(db: Queryable, limits: Limits): Promise<void> {
  const finalized = (await readDatabases(db)).filter(({ mark, interrupted }) => mark && !interrupted);
  const wanted = Object.entries(databaseSettings(limits)).map(([setting, value]) => `${setting}=${value}`);
  const { rows } = await db.query<{ name: string }>(
    `SELECT datname AS name
     FROM pg_database LEFT JOIN pg_db_role_setting ON setdatabase = pg_database.oid AND setrole = 0
     WHERE datname = ANY ($1) AND (datconnlimit <> $2 OR NOT coalesce(setconfig @> $3::text[], false))`,
    [finalized.map(({ name }) => name), limits.BRANCH_CONNECTIONS, wanted],
  );
  const failures: unknown[] = [];
  for (const { name } of rows) {
    // Statements that are sent together are one transaction, to which SET LOCAL applies.
    await db
      .query(`SET LOCAL lock_timeout = ${LOCKED_FOR_MS}; ${protectDatabase(limits, name)}`)
      .catch((error) => {
        if (sqlState(error) !== DATABASE_GONE) failures.push(error);
      });
  }
  if (failures.length > 0) throw failures[0];
}
