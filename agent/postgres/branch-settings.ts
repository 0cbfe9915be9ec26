import { DATABASE_SETTINGS, type DatabaseSettings } from '../../shared/branch/database-settings.ts';
import { identifier, literal, type Queryable } from './connect.ts';
import { sqlState } from './postgres-failure.ts';

interface Difference {
  database: string;
  name: string;
  /** Null: the setting has ended. */
  value: string | null;
}

/** `search_path` is a list of names, and a quoted text would be one of them. */
const written = (name: string, value: string) => (name === 'search_path' ? value : literal(value));

/** `invalid_parameter_value`, and a database that was dropped since. */
const LEFT_OUT = new Set(['22023', '3D000']);

/** A value that this server does not know, such as a new time zone, must not hold up passwords and rules. */
async function leaveOut(session: Queryable, error: unknown): Promise<void> {
  if (!LEFT_OUT.has(sqlState(error) ?? '')) throw error;
  await session.query('ROLLBACK TO SAVEPOINT setting');
}

async function apply(session: Queryable, differing: readonly Difference[]): Promise<void> {
  for (const { database, name, value: to } of differing) {
    const change = to === null ? `RESET ${name}` : `SET ${name} = ${written(name, to)}`;
    await session.query('SAVEPOINT setting');
    await session
      .query(`ALTER DATABASE ${identifier(database)} ${change}`)
      .catch((error) => leaveOut(session, error));
  }
}

/** Gives a copy, which has none, the settings of the branch. To be called in a transaction. */
export async function copyBranchSettings(
  session: Queryable,
  branchId: string,
  database: string,
): Promise<void> {
  const { rows } = await session.query<{ settings: DatabaseSettings | null }>(
    'SELECT settings FROM branch WHERE branch_id = $1',
    [branchId],
  );
  const settings = rows[0]?.settings ?? {};
  await apply(
    session,
    DATABASE_SETTINGS.flatMap((name) => {
      const value = settings[name];
      return value === undefined ? [] : [{ database, name, value }];
    }),
  );
}

/**
 * Gives the databases of branches the settings that the agent's tables have. Only a superuser may change them, so they
 * outlive what a login sets for itself. Sessions that are open keep what they began with.
 * @param scope the branches of a project whose settings `storeAccess` has changed, or some branches; default: all
 * To be called in a transaction.
 * @returns the databases that had others
 */
export async function restoreBranchSettings(
  session: Queryable,
  scope?: { staleOf: string } | { branches: readonly string[] },
): Promise<string[]> {
  const [condition, values] =
    scope === undefined
      ? ['true', []]
      : 'staleOf' in scope
        ? ['project_id = $1 AND settings_stale', [scope.staleOf]]
        : ['branch_id = ANY ($1)', [scope.branches]];
  const { rows } = await session.query<{
    database: string;
    wanted: DatabaseSettings | null;
    present: string[];
  }>(
    `SELECT database, settings AS wanted, coalesce(setconfig, '{}') AS present
     FROM branch JOIN pg_database ON datname = database AND datconnlimit > 0
     LEFT JOIN pg_db_role_setting ON setdatabase = pg_database.oid AND setrole = 0
     WHERE ${condition}`,
    values,
  );
  const differing = rows.flatMap(({ database, wanted, present }) =>
    DATABASE_SETTINGS.flatMap((name): Difference[] => {
      const entry = present.find((each) => each.toLowerCase().startsWith(`${name.toLowerCase()}=`));
      const found = entry?.slice(name.length + 1) ?? null;
      const to = wanted?.[name] ?? null;
      return found === to ? [] : [{ database, name, value: to }];
    }),
  );
  await apply(session, differing);
  if (rows.length > 0)
    await session.query(
      `UPDATE branch SET settings_stale = false WHERE settings_stale AND ${condition}`,
      values,
    );
  return [...new Set(differing.map(({ database }) => database))];
}
