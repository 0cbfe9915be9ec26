import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import { groupName } from '../../shared/branch/login.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { moverLogin } from '../../shared/protocol/transfer-operations.ts';
import { storeAndEnforce, waitForLogins } from '../access/enforce-access.ts';
import type { RuleSync } from '../access/sync-rules.ts';
import {
  identifier,
  inSession,
  inTransaction,
  literal,
  type Pool,
  type Session,
} from '../postgres/connect.ts';
import { databasePrint } from '../postgres/database-print.ts';
import { takeLock, withLocks } from '../postgres/locks.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { ensureGroups, restoreLogins } from '../postgres/roles.ts';
import { endSessions, LOADING } from '../postgres/sessions.ts';
import { dropUnusedRoles } from '../postgres/unused-roles.ts';
import { HostError } from '../process/host-error.ts';
import type { Log } from '../process/log.ts';
import { pollUntil, runLoop } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import { asOptions, OPTIONS } from '../rows/branch-session.ts';
import { forEach } from '../transfer/copy-rows.ts';

/**
 * The login with which another host reads the databases of a project while the project moves there. A slot is read with
 * `REPLICATION`, so the login is bounded: the rule file admits it to the databases of its project only and from the
 * other host only, and its row and its password end unless the gateway extends them.
 */

export interface MoverHost {
  settings: AgentSettings;
  sessions: Pool;
  rules: RuleSync;
  log: Log;
}

/** Sessions of the other host: those that copy, the slot, and those that compare. */
const SESSIONS = 30;
/** PostgreSQL cancels an autovacuum for a session that has waited for this time. Clients wait behind it when it compares. */
const AUTOVACUUM_YIELDS_AFTER_MS = 50;
const ENDING = { within: 5_000 };
const LOOK_UP_WITHIN_MS = 5_000;

/** @throws HostError INVALID_CALL for a name without an address, HOST_BUSY if that is not known now */
export async function networksOf(names: readonly string[]): Promise<string[]> {
  const found = await Promise.all(
    names.map(async (name) => {
      const late = new Promise<null>((resolve) => setTimeout(resolve, LOOK_UP_WITHIN_MS, null).unref());
      const looked = lookup(name, { all: true }).catch((error) =>
        sqlState(error) === 'ENOTFOUND' ? [] : null,
      );
      const addresses = await Promise.race([looked, late]);
      if (!addresses) throw new HostError('HOST_BUSY', `the address of ${name} could not be looked up`);
      if (addresses.length === 0)
        throw new HostError('INVALID_CALL', `the other host, ${name}, has no address here`);
      return addresses.map(({ address }) => `${address}/${isIP(address) === 6 ? 128 : 32}`);
    }),
  );
  return [...new Set(found.flat())];
}

/**
 * Makes the login, or sets what the call says of it. Branches that are frozen can only be read from then on, and their
 * sessions have ended. They stay so until the release, whatever a later call says.
 * @throws HostError INVALID_CALL once it was released, RULES_NOT_APPLIED, POOLER_UNAVAILABLE, HOST_BUSY
 */
export async function admitMover(
  host: MoverHost,
  { job_id, project_id, database, verifier, from, valid_seconds, frozen, closes_next }: Params<'move.admit'>,
): Promise<MethodResult<'move.admit'>> {
  const { settings, sessions, rules } = host;
  const login = moverLogin(job_id);
  const networks = await networksOf(from);
  return withLocks(sessions, [`mover:${login}`], async (session) => {
    await requireUnreleased(session, login);
    await releaseOthers(host, session, login, project_id);
    // The state is stored before anything that depends on it is done, so a call after a killed agent finds it.
    const admitted_at = await inTransaction(session, async () => {
      await ensureGroups(session, project_id);
      const { rows } = await session.query<{ admitted_at: string; valid_until: string }>(
        `INSERT INTO mover (login, project_id, database, cidrs, valid_until)
         VALUES ($1, $2, $3, $4, clock_timestamp() + make_interval(secs => $5))
         ON CONFLICT (login) DO UPDATE SET (database, cidrs, valid_until) = (excluded.database, excluded.cidrs, excluded.valid_until)
         RETURNING admitted_at::text, valid_until::text`,
        [login, project_id, database, networks, valid_seconds],
      );
      await setRole(session, login, { project_id, verifier, validUntil: rows[0]?.valid_until ?? '' });
      await freeze(session, login, project_id, frozen);
      return rows[0]?.admitted_at ?? '';
    });
    await rules.sync();
    await printFrozen(host, session, login, project_id, frozen);
    const can_remove = await canRemove(settings, login, database);
    if (closes_next) await compareEarly(host, session, login);
    return { admitted_at, can_remove };
  });
}

/** @throws HostError INVALID_CALL for a call that comes after the release: nobody would remove its login */
async function requireUnreleased(session: Session, login: string): Promise<void> {
  const { rows } = await session.query('SELECT FROM released_mover WHERE login = $1', [login]);
  if (rows.length > 0) throw new HostError('INVALID_CALL', 'the login of the move was removed');
}

/** A project moves once at a time. What an earlier move has left must not be removed later, with the slot of this one. */
async function releaseOthers(
  host: MoverHost,
  session: Session,
  login: string,
  projectId: string,
): Promise<void> {
  const { rows } = await session.query<{ login: string }>(
    'SELECT login FROM mover WHERE project_id = $1 AND login <> $2',
    [projectId, login],
  );
  for (const other of rows) {
    await takeLock(session, `mover:${other.login}`);
    await release(host, session, other.login, projectId);
  }
}

/** Takes the right to write from the logins of these branches. To be called in a transaction. */
async function freeze(
  session: Session,
  login: string,
  projectId: string,
  branchIds: readonly string[],
): Promise<void> {
  const { rowCount } = await session.query(
    `INSERT INTO frozen_branch (login, branch_id) SELECT $1, unnest($2::uuid[]) ON CONFLICT DO NOTHING`,
    [login, branchIds],
  );
  if (rowCount) await restoreLogins(session, { projectId });
}

interface Frozen {
  branch_id: string;
  database: string;
  print: string | null;
  /** Compared, and without a transaction since then. */
  is_quiet: boolean;
}

/** Differs once a transaction has ended in the database, and after a crash, which loses what was counted. */
const ACTIVITY = `concat_ws(' ', (SELECT extract(epoch FROM stats_reset) FROM pg_stat_checkpointer), extract(epoch FROM statistics.stats_reset),
  statistics.xact_rollback)`;

const readFrozen = async (session: Session, login: string): Promise<Frozen[]> =>
  (
    await session.query<Frozen>(
      `SELECT branch_id, database, print, coalesce(quiet_since = ${ACTIVITY} || ' ' || statistics.xact_commit, false) AS is_quiet
       FROM frozen_branch JOIN branch USING (branch_id) LEFT JOIN pg_stat_database AS statistics ON datname = database
       WHERE login = $1 ORDER BY database`,
      [login],
    )
  ).rows;

/**
 * Ends the sessions that began with other rights, also after an agent that was killed before it had, and records what
 * the branches are from then on.
 */
async function printFrozen(
  { settings }: MoverHost,
  session: Session,
  login: string,
  projectId: string,
  branchIds: readonly string[],
): Promise<void> {
  const frozen = await readFrozen(session, login);
  const unprinted = frozen.filter(({ branch_id, print }) => print === null && branchIds.includes(branch_id));
  if (unprinted.length === 0) return;
  await waitForLogins(session, projectId);
  await endClientsOf(
    session,
    unprinted.map(({ branch_id }) => branch_id),
  );
  for (const { branch_id, database } of unprinted)
    await session.query('UPDATE frozen_branch SET print = $3 WHERE login = $1 AND branch_id = $2', [
      ...[login, branch_id],
      await printOf(settings, login, database),
    ]);
}

const printOf = (settings: AgentSettings, login: string, database: string): Promise<string> =>
  asMover(settings, [login, database], (own) => databasePrint(own, 'content'));

/** These sessions read the prints of databases concurrently. */
const PRINTERS = [1, 2, 3, 4];

const EARLY_WITHIN_MS = 20_000;
/** Transactions of `compareEarly` in a database after it has read how many there were. */
const OWN_TRANSACTIONS = 2;

/**
 * Compares the branches that can only be read with what they were while clients are still served, and records how many
 * transactions each has had. So while clients wait, only those with another transaction since then are compared again.
 */
async function compareEarly({ settings }: MoverHost, session: Session, login: string): Promise<void> {
  const deadline = performance.now() + EARLY_WITHIN_MS;
  await forEach(await readFrozen(session, login), PRINTERS, async (_, { branch_id, database, print }) => {
    if (print === null || performance.now() > deadline) return;
    const quietSince = await asMover(settings, [login, database], async (own) => {
      // PostgreSQL counts the changes of this session before its next statement.
      const flush = () => own.query('SELECT pg_catalog.pg_stat_force_next_flush()');
      await flush();
      const { rows } = await session.query<{ activity: string }>(
        `SELECT ${ACTIVITY} || ' ' || statistics.xact_commit + $2 AS activity
         FROM pg_stat_database AS statistics WHERE datname = $1`,
        [database, OWN_TRANSACTIONS],
      );
      const isSame = (await databasePrint(own, 'content')) === print;
      await flush();
      return isSame ? rows[0]?.activity : undefined;
    });
    await session.query('UPDATE frozen_branch SET quiet_since = $3 WHERE login = $1 AND branch_id = $2', [
      ...[login, branch_id],
      quietSince,
    ]);
  });
}

/**
 * Closes a project, ends every session that could still write, and says which branches are not what they were when they
 * became read-only. From then on no branch of the project can be written, `main` neither.
 * @throws HostError HOST_BUSY, RULES_NOT_APPLIED, POOLER_UNAVAILABLE
 */
export async function closeToClients(
  host: MoverHost,
  { job_id, project_id, access, frozen }: Params<'move.close'>,
): Promise<MethodResult<'move.close'>> {
  const { settings, sessions } = host;
  const login = moverLogin(job_id);
  if (access) await storeAndEnforce(host, { project_id, access });
  return withLocks(sessions, [`mover:${login}`], async (session) => {
    const { rows } = await session.query<{ admitted_at: string }>(
      'SELECT admitted_at::text FROM mover WHERE login = $1',
      [login],
    );
    const [mover] = rows;
    if (!mover) return { admitted_at: null, written_lsn: null, changed: [] };
    const { rows: all } = await session.query<{ branch_id: string; closed: boolean }>(
      'SELECT branch_id, closed FROM branch WHERE project_id = $1',
      [project_id],
    );
    // A late call must not take the rights of branches that are open again.
    if (all.some(({ closed }) => !closed)) throw new HostError('INVALID_CALL', 'the project is not closed');
    const ids = all.map(({ branch_id }) => branch_id);
    await inTransaction(session, () => freeze(session, login, project_id, ids));
    await waitForLogins(session, project_id);
    await endClientsOf(session, ids);
    const written_lsn = await flushedLsn(session);
    const known = await readFrozen(session, login);
    const changed: string[] = [];
    await forEach(frozen, PRINTERS, async (_, id) => {
      const one = known.find(({ branch_id }) => branch_id === id);
      const isSame =
        one?.is_quiet || (one?.print != null && (await printOf(settings, login, one.database)) === one.print);
      if (!isSame) changed.push(id);
    });
    return { admitted_at: mover.admitted_at, written_lsn, changed };
  });
}

/** Flushes the WAL, because the slot reads only flushed WAL, without the pause of the WAL writer. */
async function flushedLsn(session: Session): Promise<string | null> {
  const { rows } = await session.query<{ lsn: string }>(
    "SELECT pg_logical_emit_message(false, 'branchgate', '', true)::text AS lsn",
  );
  return rows[0]?.lsn ?? null;
}

async function setRole(
  session: Session,
  login: string,
  { project_id, verifier, validUntil }: { project_id: string; verifier: string; validUntil: string },
): Promise<void> {
  const { rows } = await session.query('SELECT FROM pg_roles WHERE rolname = $1', [login]);
  const name = identifier(login);
  const unlimited = ['statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout'];
  await session.query(
    `${rows.length > 0 ? 'ALTER' : 'CREATE'} ROLE ${name} LOGIN REPLICATION PASSWORD ${literal(verifier)}
       CONNECTION LIMIT ${SESSIONS} VALID UNTIL ${literal(validUntil)};
     ALTER ROLE ${name} SET deadlock_timeout = ${AUTOVACUUM_YIELDS_AFTER_MS};
     ${unlimited.map((setting) => `ALTER ROLE ${name} SET ${setting} = 0`).join('; ')};
     GRANT ${identifier(groupName(project_id, 'owner'))} TO ${name} WITH INHERIT TRUE, SET TRUE`,
  );
  for (const one of await databasesOf(session, project_id))
    await session.query(`GRANT CONNECT, CREATE ON DATABASE ${identifier(one)} TO ${name}`);
}

const databasesOf = async (session: Session, projectId: string): Promise<string[]> => {
  const { rows } = await session.query<{ database: string }>(
    'SELECT database FROM branch JOIN pg_database ON datname = database WHERE project_id = $1 ORDER BY 1',
    [projectId],
  );
  return rows.map(({ database }) => database);
};

/** Sessions that began with other rights. @throws HostError HOST_BUSY */
async function endClientsOf(session: Session, branchIds: readonly string[]): Promise<void> {
  const clients =
    "FROM pg_stat_activity JOIN branch ON database = datname WHERE branch_id = ANY ($1) AND usename ~ '^u_[0-9a-f]{32}_'";
  if (!(await endSessions(session, clients, [branchIds], ENDING)))
    throw new HostError('HOST_BUSY', 'a session of a branch that is copied does not end');
}

/**
 * Removes the login with everything that it has left. A branch that was frozen can be written again.
 * @throws HostError HOST_BUSY while something is left, RULES_NOT_APPLIED, POOLER_UNAVAILABLE
 */
export async function releaseMover(
  host: MoverHost,
  { job_id, project_id }: Params<'move.release'>,
): Promise<MethodResult<'move.release'>> {
  const login = moverLogin(job_id);
  return withLocks(host.sessions, [`mover:${login}`], (session) => release(host, session, login, project_id));
}

async function release(
  { settings, rules }: MoverHost,
  session: Session,
  login: string,
  projectId: string,
): Promise<{ released: boolean }> {
  const isLogin = async () =>
    (await session.query('SELECT FROM pg_roles WHERE rolname = $1', [login])).rows.length > 0;
  // First, so that no later call makes it again.
  await session.query('INSERT INTO released_mover (login) VALUES ($1) ON CONFLICT DO NOTHING', [login]);
  const { rows: movers } = await session.query('SELECT FROM mover WHERE login = $1', [login]);
  if (!(await isLogin()) && movers.length === 0) return { released: false };
  const name = identifier(login);
  // Without its networks it is admitted nowhere. The row stays until nothing else is left.
  await session.query("UPDATE mover SET cidrs = '{}' WHERE login = $1", [login]);
  await rules.sync();
  if (await isLogin()) {
    await session.query(`ALTER ROLE ${name} NOREPLICATION PASSWORD NULL`);
    await endSessions(session, OF_LOGIN, [login], ENDING);
    await dropSlots(session, login, projectId);
    for (const database of await databasesWith(session, login))
      await dropOwned(settings, session, login, database);
    await endSessions(session, OF_LOGIN, [login], ENDING);
    for (const database of await databasesGranting(session, login))
      await session.query(`REVOKE ALL ON DATABASE ${identifier(database)} FROM ${name}`);
  }
  const frozen = (await readFrozen(session, login)).map(({ branch_id }) => branch_id);
  await inTransaction(session, async () => {
    await session.query('DELETE FROM mover WHERE login = $1', [login]);
    if (frozen.length > 0) await restoreLogins(session, { projectId });
  });
  if (frozen.length > 0) await endClientsOf(session, frozen);
  await dropUnusedRoles(session);
  if (await isLogin()) throw new HostError('HOST_BUSY', `the login ${login} still owns something`);
  return { released: true };
}

const OF_LOGIN = 'FROM pg_stat_activity WHERE usename = $1';

/**
 * Databases in which something names the login: it owns publications, also in clones that were made meanwhile, and a
 * tenant can grant it rights.
 */
const databasesWith = async (session: Session, login: string): Promise<string[]> => {
  const { rows } = await session.query<{ datname: string }>(
    `SELECT DISTINCT datname FROM pg_shdepend JOIN pg_database ON pg_database.oid = dbid
     WHERE refclassid = 'pg_authid'::regclass AND refobjid = $1::regrole ORDER BY 1`,
    [login],
  );
  return rows.map(({ datname }) => datname);
};

/** Databases whose rights name the login. */
const databasesGranting = async (session: Session, login: string): Promise<string[]> => {
  const { rows } = await session.query<{ datname: string }>(
    `SELECT DISTINCT datname FROM pg_database CROSS JOIN LATERAL aclexplode(datacl) AS granted
     WHERE grantee = $1::regrole ORDER BY 1`,
    [login],
  );
  return rows.map(({ datname }) => datname);
};

/**
 * Nobody else makes slots in the databases of a project: those of its table copies, and what another host made under
 * other names, are of this move. The worker of the other host may have ended just now.
 */
async function dropSlots(session: Session, login: string, projectId: string): Promise<void> {
  const areGone = async () => {
    const { rows } = await session.query(
      `SELECT CASE WHEN active THEN pg_terminate_backend(active_pid) IS NULL ELSE pg_drop_replication_slot(slot_name) IS NULL END
       FROM pg_replication_slots JOIN branch USING (database)
       WHERE project_id = $1 AND NOT EXISTS (SELECT FROM mover WHERE mover.project_id = $1 AND mover.login <> $2)`,
      [projectId, login],
    );
    return rows.length === 0;
  };
  if (!(await pollUntil(areGone, { within: 8_000, every: 50 })))
    throw new HostError('HOST_BUSY', 'a slot of the move is in use');
}

const NO_DATABASE = '3D000';
const NOT_ADMITTED = '28000';

/** A session as the login, because no superuser opens one in a tenant's database. */
const asMover = <T>(
  { POSTGRES_SOCKET_DIR, POSTGRES_PORT }: AgentSettings,
  [user, database]: readonly [string, string],
  work: (own: Session) => Promise<T>,
): Promise<T> =>
  inSession(
    {
      host: POSTGRES_SOCKET_DIR,
      port: POSTGRES_PORT,
      user,
      database,
      application_name: LOADING,
      options: asOptions({ ...OPTIONS, default_transaction_read_only: 'off' }),
    },
    work,
  );

/** Returns whether `pg_hba.conf` and `pg_ident.conf` admit the agent as the login: those of an earlier release do not. */
const canRemove = (settings: AgentSettings, login: string, database: string): Promise<boolean> =>
  asMover(settings, [login, database], async () => true).catch((error) => {
    if (sqlState(error) !== NOT_ADMITTED) throw error;
    return false;
  });

/** Drops what the login has in one database, which is opened to it for that if it is closed. */
async function dropOwned(
  settings: AgentSettings,
  session: Session,
  login: string,
  database: string,
): Promise<void> {
  const name = identifier(database);
  const { rows } = await session.query<{ is_open: boolean; connections: number }>(
    'SELECT datallowconn AS is_open, datconnlimit AS connections FROM pg_database WHERE datname = $1',
    [database],
  );
  const [before] = rows;
  if (!before) return;
  const isClosed = !before.is_open || before.connections === 0;
  try {
    await session.query(`GRANT CONNECT ON DATABASE ${name} TO ${identifier(login)}`);
    // Rights of the login name no other login.
    if (isClosed) await session.query(`ALTER DATABASE ${name} ALLOW_CONNECTIONS true CONNECTION LIMIT 1`);
    await asMover(settings, [login, database], (own) => own.query('DROP OWNED BY CURRENT_USER'));
  } catch (error) {
    // A login that is not admitted has nothing, because its move was refused. Otherwise its drop fails.
    if (![NO_DATABASE, NOT_ADMITTED].includes(sqlState(error) ?? '')) throw error;
  } finally {
    if (isClosed)
      await session
        .query(
          `ALTER DATABASE ${name} ALLOW_CONNECTIONS ${before.is_open} CONNECTION LIMIT ${before.connections}`,
        )
        .catch((error) => {
          if (sqlState(error) !== NO_DATABASE) throw error;
        });
  }
}

const CHECK_EVERY_MS = 10_000;
/** No call of the gateway is under way for so long. */
const REMEMBERED = '30 days';

/** Removes what the moves of a gateway that is gone would leave. Never throws. */
export const runMoverLoop = (host: MoverHost, signal: AbortSignal): Promise<void> =>
  runLoop(() => releaseExpired(host), {
    every: CHECK_EVERY_MS,
    signal,
    log: host.log,
    failed: 'move.login_not_removed',
  });

/** Removes the logins whose time is over: the gateway has extended them for as long as it knew their jobs. */
export async function releaseExpired(host: MoverHost): Promise<void> {
  await host.sessions.query(
    `DELETE FROM released_mover WHERE released_at < clock_timestamp() - interval '${REMEMBERED}'`,
  );
  const { rows } = await host.sessions.query<{ login: string; project_id: string }>(
    'SELECT login, project_id FROM mover WHERE valid_until < clock_timestamp()',
  );
  for (const { login, project_id } of rows)
    await withLocks(host.sessions, [`mover:${login}`], async (session) => {
      const { rows: expired } = await session.query(
        'SELECT FROM mover WHERE login = $1 AND valid_until < clock_timestamp()',
        [login],
      );
      if (expired.length === 0) return;
      await release(host, session, login, project_id);
      host.log('move.login_expired', { project_id, login });
    });
}
