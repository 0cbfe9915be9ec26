import {
  BRANCH_ROLES,
  type BranchRole,
  groupName,
  loginName,
  queryLoginName,
} from '../../shared/branch/login.ts';
import { identifier, inTransaction, literal, type Queryable, type Session } from './connect.ts';
import { LOCK_NOT_AVAILABLE, sqlState } from './postgres-failure.ts';
import { endSessions } from './sessions.ts';

/**
 * How a login is a member of its project's group. The owner login acts only as the group (by its setting
 * `role`), never as itself: objects that it owned would prevent the login's drop as long as any clone
 * contains them.
 */
const MEMBERSHIP: Record<BranchRole, string> = {
  owner: 'INHERIT FALSE, SET TRUE',
  read_write: 'INHERIT TRUE, SET FALSE',
  read_only: 'INHERIT TRUE, SET FALSE',
};

/**
 * Sessions of a branch's query login: those of the turns of a project, and of a comparison of it with itself.
 */
const QUERY_CONNECTIONS = 20;

/** Errors of ALTER ROLE when another session locks the role for longer than this, or altered it first. */
const LOCKED_FOR_MS = 500;
const CHANGED_MEANWHILE = 'XX000';
const TRIES = 5;
const ENDING = { within: 1_000 };

async function existing(db: Queryable, names: string[]): Promise<Set<string>> {
  const { rows } = await db.query<{ rolname: string }>(
    'SELECT rolname FROM pg_roles WHERE rolname = ANY ($1)',
    [names],
  );
  return new Set(rows.map(({ rolname }) => rolname));
}

/** Makes the project's groups, which own its objects and hold the grants. To be called in a transaction. */
export async function ensureGroups(session: Session, projectId: string): Promise<void> {
  const names = BRANCH_ROLES.map((role) => groupName(projectId, role));
  const missing = async () => {
    const present = await existing(session, names);
    return names.filter((name) => !present.has(name));
  };
  // Most projects have them, and the lock lasts until the end of the transaction.
  if ((await missing()).length === 0) return;
  await session.query('SELECT pg_advisory_xact_lock(hashtextextended($1, 0))', [`groups:${projectId}`]);
  for (const name of await missing()) await session.query(`CREATE ROLE ${identifier(name)} NOLOGIN`);
}

/** What the logins of a branch are made of. */
interface NewLogins {
  branch_id: string;
  /** Of SCRAM-SHA-256. */
  verifiers: Record<BranchRole, string>;
}

/**
 * Makes the logins of these branches of a project, or sets their passwords again. To be called in a transaction, after
 * `ensureGroups`. A grant locks its group until the end of the transaction, so the passwords come first: PostgreSQL
 * spends milliseconds on each.
 */
export async function ensureLogins(
  session: Session,
  projectId: string,
  branches: readonly NewLogins[],
): Promise<void> {
  const logins = branches.flatMap(({ branch_id, verifiers }) => [
    ...BRANCH_ROLES.map((role) => ({
      login: loginName(branch_id, role),
      branch_id,
      role,
      verifier: verifiers[role],
      limit: '',
    })),
    {
      login: queryLoginName(branch_id),
      branch_id,
      role: 'read_only' as const,
      verifier: null,
      limit: `CONNECTION LIMIT ${QUERY_CONNECTIONS}`,
    },
  ]);
  const textOf = (verifier: string | null) => (verifier === null ? 'NULL' : literal(verifier));
  const present = await existing(
    session,
    logins.map(({ login }) => login),
  );
  const roles = logins.map(
    ({ login, verifier, limit }) =>
      `${present.has(login) ? 'ALTER' : 'CREATE'} ROLE ${identifier(login)} LOGIN PASSWORD ${textOf(verifier)} ${limit}`,
  );
  const grants = BRANCH_ROLES.map((role) => {
    const members = logins.filter((one) => one.role === role).map(({ login }) => identifier(login));
    return `GRANT ${identifier(groupName(projectId, role))} TO ${members.join(', ')} WITH ${MEMBERSHIP[role]}`;
  });
  const rows = logins.map(
    ({ login, branch_id, verifier }) => `(${literal(login)}, ${literal(branch_id)}, ${textOf(verifier)})`,
  );
  const stored = `INSERT INTO login (login, branch_id, verifier) VALUES ${rows.join(', ')}
    ON CONFLICT (login) DO UPDATE SET verifier = excluded.verifier`;
  await session.query([...roles, ...grants, stored].join(';'));
}

/** Statements that make the branch's query login, which has no password. */
function queryLogin(branch: { project_id: string; branch_id: string }, isThere: boolean): string {
  const login = queryLoginName(branch.branch_id);
  const name = identifier(login);
  return `${isThere ? 'ALTER' : 'CREATE'} ROLE ${name} LOGIN PASSWORD NULL CONNECTION LIMIT ${QUERY_CONNECTIONS};
    GRANT ${identifier(groupName(branch.project_id, 'read_only'))} TO ${name} WITH ${MEMBERSHIP.read_only};
    INSERT INTO login (login, branch_id) VALUES (${literal(login)}, ${literal(branch.branch_id)})
    ON CONFLICT (login) DO NOTHING`;
}

/** Makes the query logins of the branches of an earlier release. They need no clone for it. */
export async function ensureQueryLogins(session: Session): Promise<void> {
  const { rows } = await session.query<{ project_id: string; branch_id: string; database: string | null }>(
    `SELECT project_id, branch_id, datname AS database
     FROM branch LEFT JOIN pg_database ON datname = database AND datconnlimit > 0
     WHERE EXISTS (SELECT FROM login WHERE login.branch_id = branch.branch_id)
       AND NOT EXISTS (
         SELECT FROM login JOIN pg_roles ON rolname = login
         WHERE login.branch_id = branch.branch_id AND verifier IS NULL)
     ORDER BY branch_id`,
  );
  for (const branch of rows)
    await inTransaction(session, async () => {
      const login = queryLoginName(branch.branch_id);
      await session.query(queryLogin(branch, (await existing(session, [login])).size > 0));
      if (branch.database !== null)
        await session.query(
          `GRANT CONNECT ON DATABASE ${identifier(branch.database)} TO ${identifier(login)}`,
        );
    });
}

interface LoginState {
  login: string;
  branch_id: string;
  /** Null: the query login. */
  verifier: string | null;
  project_id: string;
  database: string;
  closed: boolean;
  write_blocked: boolean;
  login_differs: boolean;
  /** The login itself has changed its password. */
  password_changed: boolean;
  /** The branch follows a database elsewhere. */
  follows: boolean;
  /** The owner login does not act as its group. */
  lacks_role: boolean;
  /** Membership in the group that may write; the read-only login never has it. */
  group_differs: boolean;
  read_only_differs: boolean;
  /** Commits wait for the standby. */
  is_sync: boolean;
  durability_differs: boolean;
  temporary_differs: boolean;
}

const temporaryRight = ({ login, database, write_blocked }: LoginState) =>
  write_blocked
    ? `REVOKE TEMPORARY ON DATABASE ${identifier(database)} FROM ${identifier(login)}`
    : `GRANT TEMPORARY ON DATABASE ${identifier(database)} TO ${identifier(login)}`;

/** What a login is a member of while it may write. */
const writingRole = ({ login }: Pick<LoginState, 'login'>): BranchRole =>
  login.endsWith('_owner') ? 'owner' : 'read_write';

/** A setting that a login has made for itself. */
interface ForeignSetting {
  login: string;
  /** Null: in every database. */
  database: string | null;
  name: string;
}

/** Which logins are restored. */
type RestoredScope = { projectId: string } | { branches: readonly string[] } | { staleOf: string };

/** SQL conditions on `login` and `branch`; the value is `$1`. */
const SCOPES = {
  all: 'true',
  projectId: 'project_id = $1',
  branches: 'login.branch_id = ANY ($1)',
  staleOf: 'project_id = $1 AND (end_from IS NOT NULL OR stale)',
} as const;

function scopeOf(scope: RestoredScope | undefined): { kind: keyof typeof SCOPES; values: unknown[] } {
  if (scope === undefined) return { kind: 'all', values: [] };
  if ('projectId' in scope) return { kind: 'projectId', values: [scope.projectId] };
  if ('branches' in scope) return { kind: 'branches', values: [scope.branches] };
  return { kind: 'staleOf', values: [scope.staleOf] };
}

/**
 * Settings of the logins that are not ours, by login. Some prevent every login, such as
 * `local_preload_libraries`. PostgreSQL finds settings by their database only, so those of other databases than the
 * branch's are read for whole projects alone: `LoginWatch` asks for these.
 */
async function readForeignSettings(
  session: Session,
  scope: RestoredScope | undefined,
): Promise<Map<string, ForeignSetting[]>> {
  const { kind, values } = scopeOf(scope);
  const isWhole = kind === 'all' || kind === 'projectId';
  const settings = isWhole
    ? 'pg_db_role_setting'
    : `(SELECT 0::oid AS oid UNION ALL SELECT oid FROM pg_database WHERE datname = database) AS own
       JOIN pg_db_role_setting ON setdatabase = own.oid`;
  const { rows } = await session.query<ForeignSetting>(
    `SELECT login, datname AS database, split_part(entry, '=', 1) AS name
     FROM login JOIN branch USING (branch_id) JOIN pg_authid ON rolname = login
     CROSS JOIN LATERAL (
       SELECT setdatabase, setconfig FROM ${settings} WHERE setrole = pg_authid.oid
     ) AS setting CROSS JOIN unnest(setconfig) AS entry
     LEFT JOIN pg_database ON pg_database.oid = setdatabase
     WHERE ${FOREIGN} AND ${SCOPES[kind]}
     ORDER BY login, name`,
    values,
  );
  return Map.groupBy(rows, ({ login }) => login);
}

const ownerRole = "'role=g_' || replace(project_id::text, '-', '') || '_owner'";

/** Whether the login's branch follows a database elsewhere, or is copied to another host: even its owner can only read. */
const FOLLOWS = `(EXISTS (SELECT FROM following WHERE following.branch_id = branch.branch_id AND since IS NOT NULL)
  OR EXISTS (SELECT FROM frozen_branch WHERE frozen_branch.branch_id = branch.branch_id))`;

/**
 * The setting of the logins of a project with the durability `sync`. Those that can only run queries write nothing. A standby that
 * takes over applies all WAL that it has on its disk, so no commit waits until the writes of others are applied.
 */
const SYNC = 'synchronous_commit=on';
const IS_SYNC = "durability = 'sync' AND login !~ '_query$'";

/**
 * Whether an entry of `pg_db_role_setting` is none of ours. The default of a write block is restored with
 * `read_only_differs`, the role of an owner with `group_differs`, and the durability with `durability_differs`.
 */
const FOREIGN = `NOT (setdatabase = 0 AND (login !~ '_owner$' OR ${FOLLOWS}) AND entry = 'default_transaction_read_only=on')
  AND NOT (setdatabase = 0 AND entry = '${SYNC}')
  AND NOT (datname IS NOT DISTINCT FROM database AND login ~ '_owner$' AND entry = ${ownerRole})`;

/** The owner login does not act as its group in the branch's database. */
const LACKS_ROLE = `login ~ '_owner$' AND NOT ${FOLLOWS} AND pg_database.oid IS NOT NULL AND NOT EXISTS (
  SELECT FROM pg_db_role_setting
  WHERE setrole = pg_roles.oid AND setdatabase = pg_database.oid AND ${ownerRole} = ANY (setconfig))`;

/**
 * A client may have begun to log in with a password that a login has set for this long before it was set.
 */
const LOGIN_BEGUN_WITHIN = '20 seconds';

/** Projects of logins that have changed their own password or settings. */
export async function readChangedProjects(db: Queryable): Promise<string[]> {
  const { rows } = await db.query<{ project_id: string }>(
    `SELECT project_id
     FROM login JOIN branch USING (branch_id) JOIN project USING (project_id)
     JOIN pg_authid ON rolname = login
     WHERE rolpassword IS DISTINCT FROM verifier AND NOT unenforced AND end_from IS NULL
     UNION
     SELECT project_id
     FROM pg_db_role_setting CROSS JOIN unnest(setconfig) AS entry
     JOIN pg_roles ON pg_roles.oid = setrole JOIN login ON login = rolname
     JOIN branch USING (branch_id) LEFT JOIN pg_database ON pg_database.oid = setdatabase
     WHERE ${FOREIGN}
     UNION
     SELECT project_id
     FROM login JOIN branch USING (branch_id) JOIN pg_roles ON rolname = login
     JOIN pg_database ON datname = database AND datconnlimit > 0
     WHERE ${LACKS_ROLE}
     UNION
     SELECT project_id
     FROM login JOIN branch USING (branch_id) JOIN project USING (project_id) JOIN pg_roles ON rolname = login
     WHERE NOT unenforced AND (${IS_SYNC}) <> coalesce('${SYNC}' = ANY (rolconfig), false)`,
  );
  return rows.map(({ project_id }) => project_id);
}

/** A login that had changed itself, and was restored. */
export interface RestoredLogin {
  project_id: string;
  login: string;
  /** Whether it had another password. The sessions that may have used it have to be ended. */
  password: boolean;
  /** Names of its settings that were removed. */
  settings: string[];
}

/**
 * Restores logins to the state in the agent's tables: the password and the settings, which a login can change
 * itself, whether it may log in, and the effects of a write block on the logins other than the owner's, or of following on
 * all: they are read-only by default, and cannot make temporary tables, which would fill the disk whatever the
 * default is. To be called in a transaction.
 * @param scope limits it to a project, to branches, or to the logins of a project that `storeAccess` has marked as stale
 * @param enforces the caller is `enforceAccess`. It alone restores logins whose sessions have to end: that a
 *   password was replaced shows it which session is left.
 * @returns the logins that had changed themselves. The access of the project of one that had another password
 *   is not enforced any more: `enforceAccess` ends the sessions that may have used it.
 */
export async function restoreLogins(
  session: Session,
  scope?: RestoredScope,
  { enforces } = { enforces: false },
): Promise<RestoredLogin[]> {
  const { kind, values } = scopeOf(scope);
  // A generic plan: planning these joins takes five times as long as running them for one project.
  await session.query(
    `SET LOCAL lock_timeout = ${LOCKED_FOR_MS}; SET LOCAL plan_cache_mode = force_generic_plan`,
  );
  const { rows } = await session.query<LoginState>(
    `SELECT *,
            login ~ '_(rw|owner)$' AND write_blocked = EXISTS (
              SELECT FROM pg_auth_members
              WHERE member = login_oid AND roleid = (
                SELECT oid FROM pg_authid
                WHERE rolname = 'g_' || replace(project_id::text, '-', '') || substring(login FROM '_(?:rw|owner)$'))
            ) AS group_differs,
            (login !~ '_owner$' OR follows)
              AND write_blocked <> coalesce('default_transaction_read_only=on' = ANY (settings), false)
              AS read_only_differs,
            is_sync <> coalesce('${SYNC}' = ANY (settings), false) AS durability_differs,
            login !~ '_query$' AND (login !~ '_owner$' OR database_oid IS NOT NULL)
              AND write_blocked = has_database_privilege(login_oid, database_oid, 'TEMPORARY')
              AS temporary_differs
     FROM (
       SELECT login, branch_id, verifier, project_id, database, pg_database.oid AS database_oid, closed,
              ${FOLLOWS} AS follows,
              ${FOLLOWS} OR (write_blocked_since IS NOT NULL AND login !~ '_owner$') AS write_blocked,
              ${IS_SYNC} AS is_sync,
              pg_authid.oid AS login_oid, rolconfig AS settings,
              pg_authid.rolpassword IS DISTINCT FROM verifier OR pg_authid.rolcanlogin = closed AS login_differs,
              pg_authid.rolpassword IS DISTINCT FROM verifier AND end_from IS DISTINCT FROM '-infinity'
                AS password_changed,
              ${LACKS_ROLE} AS lacks_role
       FROM login JOIN branch USING (branch_id) JOIN project USING (project_id)
       JOIN pg_authid ON pg_authid.rolname = login JOIN pg_roles ON pg_roles.oid = pg_authid.oid
       LEFT JOIN pg_database ON datname = database AND datconnlimit > 0
       WHERE ${SCOPES[kind]} AND ($${values.length + 1} OR NOT unenforced OR end_from IS DISTINCT FROM '-infinity')
     ) AS state
     ORDER BY login`,
    [...values, enforces],
  );
  const foreign = await readForeignSettings(session, scope);
  const settingsOf = ({ login }: LoginState) => foreign.get(login) ?? [];
  await alterAll(
    session,
    rows.flatMap((state) =>
      restoring(state, settingsOf(state)).map((statement) => ({ login: state.login, statement })),
    ),
  );
  const changed = rows.filter(
    (state) =>
      state.password_changed ||
      // Its branch has stopped following otherwise.
      (state.lacks_role && !state.group_differs) ||
      settingsOf(state).length > 0,
  );
  for (const state of changed) await recordRestored(session, state, settingsOf(state));
  return changed.map((state) => ({
    project_id: state.project_id,
    login: state.login,
    password: state.password_changed,
    settings: namesOf(settingsOf(state)),
  }));
}

const namesOf = (settings: readonly ForeignSetting[]) => [...new Set(settings.map(({ name }) => name))];

/** Reports are kept for longer than it takes until the gateway has read them. */
const REPORTED_FOR = '1 hour';
/** Of one branch, which may change itself again and again. */
const REPORTS_MAX = 10;

/** Records what is reported to the tenant, and which sessions have to end. */
async function recordRestored(
  session: Session,
  { login, branch_id, project_id, password_changed }: LoginState,
  settings: readonly ForeignSetting[],
): Promise<void> {
  await session.query(
    `DELETE FROM restored_login WHERE restored_at < clock_timestamp() - interval '${REPORTED_FOR}'`,
  );
  await session.query(
    `INSERT INTO restored_login (branch_id, login, password, settings)
     SELECT $1, $2, $3, $4 WHERE (SELECT count(*) FROM restored_login WHERE branch_id = $1) < ${REPORTS_MAX}`,
    [branch_id, login, password_changed, namesOf(settings)],
  );
  if (!password_changed) return;
  await session.query(
    `UPDATE login SET end_from = least(end_from, clock_timestamp() - interval '${LOGIN_BEGUN_WITHIN}')
     WHERE login = $1`,
    [login],
  );
  await session.query('UPDATE project SET unenforced = true WHERE project_id = $1', [project_id]);
}

/** Keeps logins from opening sessions until they are restored. To be called in a transaction. */
export async function refuseLogins(session: Session, logins: readonly string[]): Promise<void> {
  await session.query(`SET LOCAL lock_timeout = ${LOCKED_FOR_MS}`);
  const refusal = (login: string) => ({ login, statement: `ALTER ROLE ${identifier(login)} NOLOGIN` });
  await alterAll(session, logins.map(refusal));
}

/** Statements that restore one login. */
function restoring(state: LoginState, foreign: readonly ForeignSetting[]): string[] {
  const name = identifier(state.login);
  const statements: string[] = [];
  if (foreign.length > 0 || state.lacks_role) statements.push(...resettingAll(state, foreign));
  if (state.login_differs) {
    const may = state.closed ? 'NOLOGIN' : 'LOGIN';
    const password = state.verifier === null ? 'NULL' : literal(state.verifier);
    statements.push(`ALTER ROLE ${name} ${may} PASSWORD ${password}`);
  }
  if (state.group_differs) {
    const role = writingRole(state);
    const [writing, reading] = [role, 'read_only' as const].map((one) =>
      identifier(groupName(state.project_id, one)),
    );
    const [given, taken] = state.write_blocked ? [reading, writing] : [writing, reading];
    const how = MEMBERSHIP[state.write_blocked ? 'read_only' : role];
    // The membership acts immediately, also on open sessions. The setting gives new ones a clear error.
    statements.push(`GRANT ${given} TO ${name} WITH ${how}; REVOKE ${taken} FROM ${name}`);
    if (role === 'owner' && state.write_blocked)
      statements.push(`ALTER ROLE ${name} IN DATABASE ${identifier(state.database)} RESET role`);
  }
  if (state.read_only_differs) {
    const setting = state.write_blocked
      ? 'SET default_transaction_read_only = on'
      : 'RESET default_transaction_read_only';
    statements.push(`ALTER ROLE ${name} ${setting}`);
  }
  if (state.durability_differs) statements.push(durabilityOf(state));
  if (state.temporary_differs) statements.push(temporaryRight(state));
  return statements;
}

const durabilityOf = ({ login, is_sync }: LoginState) =>
  `ALTER ROLE ${identifier(login)} ${is_sync ? 'SET synchronous_commit = on' : 'RESET synchronous_commit'}`;

/** Statements that remove every setting of a login, and set ours again. */
function resettingAll(state: LoginState, foreign: readonly ForeignSetting[]): string[] {
  const { login, project_id, database, write_blocked, lacks_role, is_sync } = state;
  const name = identifier(login);
  const databases = new Set(foreign.flatMap((setting) => setting.database ?? []));
  const isOwner = login.endsWith('_owner');
  const ownRole = `ALTER ROLE ${name} IN DATABASE ${identifier(database)}
    SET role = ${identifier(groupName(project_id, 'owner'))}`;
  return [
    `ALTER ROLE ${name} RESET ALL`,
    ...[...databases].map((one) => `ALTER ROLE ${name} IN DATABASE ${identifier(one)} RESET ALL`),
    ...(isOwner && !write_blocked && (lacks_role || databases.has(database)) ? [ownRole] : []),
    ...(write_blocked ? [`ALTER ROLE ${name} SET default_transaction_read_only = on`] : []),
    ...(is_sync ? [durabilityOf(state)] : []),
  ];
}

/** A statement that alters a login. */
interface Alteration {
  login: string;
  statement: string;
}

/** Runs them together, and if a login holds one up, one after another. */
async function alterAll(session: Session, alterations: readonly Alteration[]): Promise<void> {
  if (alterations.length === 0) return;
  const together = alterations.map(({ statement }) => statement).join('; ');
  try {
    await session.query(`SAVEPOINT altering; ${together}`);
  } catch (error) {
    if (!isHeldUp(error)) throw error;
    await session.query('ROLLBACK TO altering');
    for (const alteration of alterations) await alter(session, alteration);
  }
}

const isHeldUp = (error: unknown) => [LOCK_NOT_AVAILABLE, CHANGED_MEANWHILE].includes(sqlState(error) ?? '');

/**
 * Sessions of the login's project that have written: a function that the login owns alters it for others too.
 */
const MAY_ALTER = `backend_xid IS NOT NULL AND datname IN (
  SELECT other.database FROM login JOIN branch USING (branch_id) JOIN branch AS other USING (project_id) WHERE login = $1)`;

/**
 * Runs a statement that alters a login. The login can block it by altering itself, repeatedly or in a
 * transaction that it leaves open. Its sessions that have written are ended then, and if that does not help,
 * all of them, and those of its project that have written.
 */
async function alter(session: Session, { login, statement }: Alteration): Promise<void> {
  await session.query('SAVEPOINT altering');
  for (let tries = 1; ; tries += 1) {
    try {
      await session.query(statement);
      return;
    } catch (error) {
      if (!isHeldUp(error) || tries === TRIES) throw error;
      await session.query('ROLLBACK TO altering');
      // The first time it may have been another operation.
      if (sqlState(error) === CHANGED_MEANWHILE && tries === 1) continue;
      await endSessions(
        session,
        `FROM pg_stat_activity WHERE usename = $1 AND (backend_xid IS NOT NULL OR $2) OR $2 AND ${MAY_ALTER}`,
        [login, tries > 2],
        ENDING,
      );
    }
  }
}
