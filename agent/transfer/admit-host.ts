import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import { groupName } from '../../shared/branch/login.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { followName, moverLogin } from '../../shared/protocol/transfer-operations.ts';
import type { RuleSync } from '../access/sync-rules.ts';
import {
  identifier,
  inSession,
  inTransaction,
  literal,
  type Pool,
  type Session,
} from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { dropUnusedRoles, ensureGroups, restoreLogins } from '../postgres/roles.ts';
import { endSessions, LOADING } from '../postgres/sessions.ts';
import { HostError } from '../process/host-error.ts';
import type { Log } from '../process/log.ts';
import { pollUntil, runLoop } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import { asOptions, OPTIONS } from '../rows/branch-session.ts';
import { publicationsOf } from './source-slot.ts';

/**
 * The login with which another host reads the databases of a project while the project moves there. A slot is read with
 * `REPLICATION`, so the login is bounded: the rule file admits it to the databases of its project only and from the
 * other host only, and its row and its password end unless the gateway extends them.
 */

export interface AdmittingHost {
  settings: AgentSettings;
  sessions: Pool;
  rules: RuleSync;
  log: Log;
}

/** Sessions of the other host: those that copy, the slot, and those that compare. */
const SESSIONS = 30;
const ENDING = { within: 5_000 };
const LOOK_UP_WITHIN_MS = 5_000;

/** @throws HostError INVALID_CALL for a name without an address */
async function networksOf(names: readonly string[]): Promise<string[]> {
  const found = await Promise.all(
    names.map(async (name) => {
      const late = new Promise<null>((resolve) => setTimeout(resolve, LOOK_UP_WITHIN_MS, null).unref());
      const addresses = await Promise.race([lookup(name, { all: true }).catch(() => null), late]);
      if (!addresses?.length) throw new HostError('INVALID_CALL', `the other host ${name} has no address`);
      return addresses.map(({ address }) => `${address}/${isIP(address) === 6 ? 128 : 32}`);
    }),
  );
  return [...new Set(found.flat())];
}

/**
 * Makes the login, or sets what the call says of it. Branches that are frozen can only be read from then on, and their
 * sessions have ended.
 * @throws HostError INVALID_CALL, RULES_NOT_APPLIED, POOLER_UNAVAILABLE, HOST_BUSY
 */
export async function admitHost(
  { settings, sessions, rules }: AdmittingHost,
  { job_id, project_id, database, verifier, from, valid_seconds, frozen }: Params<'move.admit'>,
): Promise<MethodResult<'move.admit'>> {
  const login = moverLogin(job_id);
  const networks = await networksOf(from);
  return withLocks(sessions, [`mover:${login}`], async (session) => {
    const { admitted_at, newly } = await inTransaction(session, async () => {
      await ensureGroups(session, project_id);
      const { rows: before } = await session.query<{ frozen: string[] }>(
        'SELECT frozen::text[] AS frozen FROM mover WHERE login = $1',
        [login],
      );
      const { rows } = await session.query<{ admitted_at: string; valid_until: string }>(
        `INSERT INTO mover (login, project_id, database, cidrs, frozen, valid_until)
         VALUES ($1, $2, $3, $4, $5, clock_timestamp() + make_interval(secs => $6))
         ON CONFLICT (login) DO UPDATE
           SET (database, cidrs, frozen, valid_until) = (excluded.database, excluded.cidrs, excluded.frozen, excluded.valid_until)
         RETURNING admitted_at::text, valid_until::text`,
        [login, project_id, database, networks, frozen, valid_seconds],
      );
      await setRole(session, login, { project_id, verifier, validUntil: rows[0]?.valid_until ?? '' });
      if (frozen.length > 0 || before.some((row) => row.frozen.length > 0))
        await restoreLogins(session, project_id);
      const known = new Set(before.flatMap((row) => row.frozen));
      return { admitted_at: rows[0]?.admitted_at ?? '', newly: frozen.filter((id) => !known.has(id)) };
    });
    await rules.sync();
    // Repeated by a call after an agent that was killed, whose sessions still have their rights.
    if (newly.length > 0) await endClientsOf(session, newly);
    return { admitted_at, can_remove: await canRemove(settings, login, database) };
  });
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
export async function releaseHost(
  host: AdmittingHost,
  { job_id, project_id }: Params<'move.release'>,
): Promise<MethodResult<'move.release'>> {
  const login = moverLogin(job_id);
  return withLocks(host.sessions, [`mover:${login}`], (session) => release(host, session, login, project_id));
}

async function release(
  { settings, rules }: AdmittingHost,
  session: Session,
  login: string,
  projectId: string,
): Promise<{ released: boolean }> {
  const isLogin = async () =>
    (await session.query('SELECT FROM pg_roles WHERE rolname = $1', [login])).rows.length > 0;
  const { rows: movers } = await session.query<{ database: string; frozen: string[] }>(
    'SELECT database, frozen::text[] AS frozen FROM mover WHERE login = $1',
    [login],
  );
  const [mover] = movers;
  if (!(await isLogin()) && !mover) return { released: false };
  const name = identifier(login);
  // Without its networks it is admitted nowhere. The row stays until nothing else is left.
  await session.query("UPDATE mover SET cidrs = '{}' WHERE login = $1", [login]);
  await rules.sync();
  if (await isLogin()) {
    await session.query(`ALTER ROLE ${name} NOREPLICATION PASSWORD NULL`);
    await endSessions(session, 'FROM pg_stat_activity WHERE usename = $1', [login], ENDING);
    await dropSlots(session, projectId);
    if (mover) await dropPublications(settings, login, mover.database, projectId);
    await endSessions(session, 'FROM pg_stat_activity WHERE usename = $1', [login], ENDING);
    for (const database of await databasesOf(session, projectId))
      await session.query(`REVOKE ALL ON DATABASE ${identifier(database)} FROM ${name}`);
  }
  await inTransaction(session, async () => {
    await session.query('DELETE FROM mover WHERE login = $1', [login]);
    if (mover?.frozen.length) await restoreLogins(session, projectId);
  });
  if (mover?.frozen.length) await endClientsOf(session, mover.frozen);
  await dropUnusedRoles(session);
  if (await isLogin()) throw new HostError('HOST_BUSY', `the login ${login} still owns something`);
  return { released: true };
}

/** The worker of the other host may have ended just now. */
async function dropSlots(session: Session, projectId: string): Promise<void> {
  const areGone = async () => {
    const { rows } = await session.query(
      `SELECT CASE WHEN active THEN pg_terminate_backend(active_pid) IS NULL ELSE pg_drop_replication_slot(slot_name) IS NULL END
       FROM pg_replication_slots WHERE slot_name = $1`,
      [followName(projectId)],
    );
    return rows.length === 0;
  };
  if (!(await pollUntil(areGone, { within: 8_000, every: 50 })))
    throw new HostError('HOST_BUSY', 'the slot of the move is in use');
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
      ...{ host: POSTGRES_SOCKET_DIR, port: POSTGRES_PORT, user, database, application_name: LOADING },
      options: asOptions({ ...OPTIONS, default_transaction_read_only: 'off' }),
    },
    work,
  );

/** Whether `pg_hba.conf` and `pg_ident.conf` admit the agent as the login: those of an earlier release do not. */
const canRemove = (settings: AgentSettings, login: string, database: string): Promise<boolean> =>
  asMover(settings, [login, database], async () => true).catch((error) => {
    if (sqlState(error) !== NOT_ADMITTED) throw error;
    return false;
  });

async function dropPublications(
  settings: AgentSettings,
  login: string,
  database: string,
  projectId: string,
): Promise<void> {
  const names = publicationsOf({ slot: followName(projectId), publication: null }).map(identifier);
  // A login that is not admitted has nothing, because its move was refused. Otherwise its drop fails.
  await asMover(settings, [login, database], (own) =>
    own.query(`DROP PUBLICATION IF EXISTS ${names.join(', ')}`),
  ).catch((error) => {
    if (![NO_DATABASE, NOT_ADMITTED].includes(sqlState(error) ?? '')) throw error;
  });
}

const CHECK_EVERY_MS = 10_000;

/** Removes what the moves of a gateway that is gone would leave. Never throws. */
export const runMoverLoop = (host: AdmittingHost, signal: AbortSignal): Promise<void> =>
  runLoop(() => releaseExpired(host), {
    ...{ every: CHECK_EVERY_MS, signal, log: host.log, failed: 'move.login_not_removed' },
  });

/** Removes the logins whose time is over: the gateway has extended them for as long as it knew their jobs. */
export async function releaseExpired(host: AdmittingHost): Promise<void> {
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
