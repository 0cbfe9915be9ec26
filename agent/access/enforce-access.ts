import type { Params } from '../../shared/protocol/operations.ts';
import { showClientsAndLogins, showConnected, withAdminConsoles } from '../pooler/admin-console.ts';
import { reconnectServers } from '../pooler/pause.ts';
import { restoreBranchSettings } from '../postgres/branch-settings.ts';
import {
  AGENT_ADDRESS,
  inTransaction,
  type Pool,
  type Queryable,
  type Session,
} from '../postgres/connect.ts';
import { takeLockWithin, withLocks } from '../postgres/locks.ts';
import { refuseLogins, restoreLogins } from '../postgres/roles.ts';
import { type ClientLogin, endSessions, readClientLogins } from '../postgres/sessions.ts';
import { HostError } from '../process/host-error.ts';
import { pollUntil } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import { storeAccess } from './store-access.ts';
import type { RuleSync } from './sync-rules.ts';

/** Returns when this access, or a newer one, is in effect on both ports and for all open sessions. */
export const storeAndEnforce = (
  host: AccessHost & { sessions: Pool },
  { project_id, access }: Params<'access.apply'>,
): Promise<void> =>
  withLocks(host.sessions, [], async (session) => {
    await inTransaction(session, () => storeAccess(session, project_id, access));
    await enforceAccess(host, session, project_id);
  });

/** What it takes to enforce an access. */
export interface AccessHost {
  settings: AgentSettings;
  rules: RuleSync;
}

/** Less than the deadline of `access.apply`. A holder that hangs must not hold up the start of the agent. */
const LOCKED_WITHIN_SECONDS = 20;
/** Longest wait for sessions that were signalled to end. */
const ENDING = { within: 4_000 };
/** A login takes a few round trips; one that stays unfinished for longer is ended. */
const LOGIN = { within: 2_000, every: 10 };
/** A statement of a client that was disconnected has this long to end. */
const STATEMENT = { within: 2_000, every: 10 };
/** A login that began before it was refused can need another one. */
const TRIES = 5;

/**
 * Applies the access that `storeAccess` stored to logins, both ports and open sessions. It works from the
 * sessions that still exist, not from what changed, so after a crash it also ends those that an earlier call
 * left.
 * @param session holds the advisory lock until the caller releases it
 * @param lockedWithin seconds to wait for that lock
 * @throws HostError HOST_BUSY, RULES_NOT_APPLIED, POOLER_UNAVAILABLE
 */
export async function enforceAccess(
  host: AccessHost,
  session: Session,
  projectId: string,
  lockedWithin = LOCKED_WITHIN_SECONDS,
): Promise<void> {
  await takeLockWithin(session, `access:${projectId}`, lockedWithin);
  const { rows: stored } = await session.query<{ access_revision: number }>(
    'SELECT access_revision FROM project WHERE project_id = $1',
    [projectId],
  );
  const ending = await loginsToEnd(session, projectId);
  await inTransaction(session, () => restoreLogins(session, { staleOf: projectId }, { enforces: true }));
  const changed = await inTransaction(session, () => restoreBranchSettings(session, { staleOf: projectId }));
  const endOthers = async () => {
    await waitForLogins(session, projectId);
    await endDirectSessions(session, projectId);
    await endStatements(session, ending.logins);
  };
  // One reload then brings the new passwords to the pooler and refuses its clients. A login under way counts as a client.
  const connected = await connectedOf(host, ending.disconnected);
  if (connected.length > 0) await host.rules.withhold(connected, endOthers);
  else {
    await host.rules.sync();
    await endOthers();
  }
  const others = ending.disconnected.filter((database) => !connected.includes(database));
  const late = await connectedOf(host, others);
  if (late.length > 0) await host.rules.withhold(late, () => endStatements(session, ending.logins));
  ending.reconnected.push(...others.filter((database) => !late.includes(database)));
  // Pooled clients stay connected, and their next transaction has the new settings.
  for (const database of new Set([...ending.reconnected, ...changed]))
    await reconnectServers(host.settings, database);
  await disconnectUnauthorised(host, session, projectId);
  await confirmPasswords(host, session, projectId, ending.logins);
  await clearEnding(session, projectId, stored[0]?.access_revision ?? -1);
}

/** Returns whether `enforceAccess` has work that a sync of the rules does not do. */
export async function isUnenforced(db: Queryable, projectId: string): Promise<boolean> {
  const { rowCount } = await db.query(
    `SELECT FROM project WHERE project_id = $1 AND (unenforced OR EXISTS (
       SELECT FROM login JOIN branch USING (branch_id) WHERE branch.project_id = project.project_id AND stale))`,
    [projectId],
  );
  return rowCount !== 0;
}

/** Projects whose access may not be in effect on open sessions: the agent died while it enforced it. */
export async function unenforcedProjects(db: Queryable): Promise<string[]> {
  const { rows } = await db.query<{ project_id: string }>(
    'SELECT project_id FROM project WHERE unenforced ORDER BY project_id',
  );
  return rows.map(({ project_id }) => project_id);
}

interface Ending {
  /** Logins with a new password. */
  logins: string[];
  /** Databases whose pooled clients are disconnected. */
  disconnected: string[];
  /** Databases whose pooled clients stay connected and get new sessions with PostgreSQL. */
  reconnected: string[];
}

async function loginsToEnd(session: Session, projectId: string): Promise<Ending> {
  // The pooler disconnects the clients of a closed branch itself when its entry is removed.
  const { rows } = await session.query<{ database: string; logins: string[] }>(
    `SELECT database, coalesce(array_agg(login) FILTER (WHERE end_from = '-infinity'), '{}') AS logins
     FROM login JOIN branch USING (branch_id)
     WHERE project_id = $1 AND end_from IS NOT NULL AND NOT closed GROUP BY database`,
    [projectId],
  );
  const named = (rotated: boolean) =>
    rows.filter(({ logins }) => logins.length > 0 === rotated).map(({ database }) => database);
  return {
    logins: rows.flatMap(({ logins }) => logins),
    disconnected: named(true),
    reconnected: named(false),
  };
}

/**
 * A login in progress was checked against the rules at its start; a client that has only connected is checked
 * when it begins to log in. Logins to other projects' branches are not waited for: a tenant could otherwise
 * delay all others with logins that stall.
 * @param projectId null: those of all projects, for a host that is closed
 */
export async function waitForLogins(session: Queryable, projectId: string | null): Promise<void> {
  const { rows } = await session.query<{ now: string }>('SELECT clock_timestamp()::text AS now');
  const now = rows[0]?.now ?? null;
  const left = async () => ofProject(session, await readClientLogins(session, now), projectId);
  if (await pollUntil(async () => (await left()).length === 0, LOGIN)) return;
  await endSessions(
    session,
    "FROM pg_stat_activity WHERE state = 'starting' AND pid = ANY ($1) AND backend_start < $2::timestamptz",
    [(await left()).map(({ pid }) => pid), now],
    ENDING,
  );
}

/** Without those to branches of other projects. One to an unknown branch may be the project's. */
async function ofProject(
  session: Queryable,
  logins: readonly ClientLogin[],
  projectId: string | null,
): Promise<readonly ClientLogin[]> {
  const ids = logins.flatMap(({ branch_id }) => branch_id ?? []);
  if (projectId === null || ids.length === 0) return logins;
  const { rows } = await session.query<{ branch_id: string }>(
    'SELECT branch_id FROM branch WHERE branch_id = ANY ($1) AND project_id = $2',
    [ids, projectId],
  );
  const branches = new Set<string | null>([null, ...rows.map(({ branch_id }) => branch_id)]);
  return logins.filter(({ branch_id }) => branches.has(branch_id));
}

/** Names the databases that have a client at the pooler, which must end with its password. */
async function connectedOf({ settings }: AccessHost, databases: readonly string[]): Promise<string[]> {
  if (databases.length === 0) return [];
  const all = new Set((await withAdminConsoles(settings, showConnected)).flat());
  return databases.filter((database) => all.has(database));
}

/** Statements over the socket, whose transactions began before a time. */
const BUSY = `FROM pg_stat_activity
  WHERE usename = ANY ($1) AND client_addr IS NULL AND state <> 'idle' AND xact_start < $2::timestamptz`;

/**
 * Waits for statements over the socket, among them those of pooled clients that were disconnected, or ends
 * them.
 */
async function endStatements(session: Session, logins: string[]): Promise<void> {
  const { rows } = await session.query<{ now: string }>('SELECT clock_timestamp()::text AS now');
  const values = [logins, rows[0]?.now];
  const none = async () => (await session.query(`SELECT ${BUSY}`, values)).rowCount === 0;
  if (!(await pollUntil(none, STATEMENT))) await endSessions(session, BUSY, values, ENDING);
}

/**
 * A session can replace the new password by its own until it has ended, and the next one begins with that. A
 * login that was changed so is refused until its sessions have ended; others are not, because requests for
 * rows use the same logins.
 * @throws HostError RULES_NOT_APPLIED
 */
async function confirmPasswords(
  host: AccessHost,
  session: Session,
  projectId: string,
  logins: string[],
): Promise<void> {
  for (let tries = 0; ; tries += 1) {
    const changed = await readChanged(session, logins);
    if (changed.length === 0) return;
    if (tries === TRIES) throw new HostError('RULES_NOT_APPLIED', 'a login keeps replacing its password');
    const databases = [...new Set(changed.map(({ database }) => database))];
    const refused = changed.map(({ login }) => login);
    await host.rules.withhold(databases, () => endRefused(session, projectId, refused));
  }
}

/** The logins whose password is not the stored one. */
async function readChanged(
  session: Session,
  logins: string[],
): Promise<{ login: string; database: string }[]> {
  const { rows } = await session.query<{ login: string; database: string }>(
    `SELECT login, database FROM login JOIN branch USING (branch_id) JOIN pg_authid ON rolname = login
     WHERE login = ANY ($1) AND rolpassword IS DISTINCT FROM verifier`,
    [logins],
  );
  return rows;
}

/** Ends all sessions of the logins, which cannot open others meanwhile. */
async function endRefused(session: Session, projectId: string, logins: string[]): Promise<void> {
  const restore = () => restoreLogins(session, { staleOf: projectId }, { enforces: true });
  const refuse = () =>
    inTransaction(session, async () => {
      await restore();
      await refuseLogins(session, logins);
    });
  try {
    await refuse();
    await waitForLogins(session, projectId);
    await endSessions(session, 'FROM pg_stat_activity WHERE usename = ANY ($1)', [logins], ENDING);
    // A login in progress may have read a password that one of them has set.
    await refuse();
    await waitForLogins(session, projectId);
  } finally {
    await inTransaction(session, restore);
  }
}

/** Whether no rule of `branch` admits the address in this column. */
const noRuleFor = (address: string) => `NOT EXISTS (
  SELECT FROM network_rule AS rule
  WHERE rule.project_id = branch.project_id
    AND (rule.branch_id IS NULL OR rule.branch_id = branch.branch_id) AND ${address} <<= rule.cidr)`;

/**
 * Direct sessions of ended logins, and those from addresses that no rule admits. The pooler's use the socket. Clients over
 * WebSocket have the agent's address here, and theirs is checked by `OpenClients`.
 */
const NOT_ALLOWED = `
  FROM pg_stat_activity AS session
  -- OFFSET keeps the order: the branch of each session, and not the sessions of each branch.
  JOIN LATERAL (SELECT branch_id, project_id FROM branch WHERE database = datname OFFSET 0) AS branch ON project_id = $1
  LEFT JOIN login ON login = usename
  WHERE client_addr IS NOT NULL
    AND (backend_start >= end_from OR (client_addr <> '${AGENT_ADDRESS}' AND ${noRuleFor('client_addr')}))`;

const endDirectSessions = (session: Session, projectId: string) =>
  endSessions(session, NOT_ALLOWED, [projectId], ENDING);

/** Pooled clients from addresses that no rule admits any more. They can only be disconnected by database. */
async function disconnectUnauthorised(host: AccessHost, session: Session, projectId: string): Promise<void> {
  const clients = (await withAdminConsoles(host.settings, showClientsAndLogins)).flat();
  const { rows } = await session.query<{ database: string }>(
    `SELECT DISTINCT client.database
     FROM unnest($2::text[], $3::inet[]) AS client (database, address)
     JOIN branch ON branch.database = client.database AND project_id = $1
     WHERE ${noRuleFor('address')}`,
    [projectId, clients.map(({ database }) => database), clients.map(({ address }) => address)],
  );
  // The console's KILL is not used, because it spares logins in progress.
  const databases = rows.map(({ database }) => database);
  if (databases.length > 0) await host.rules.withhold(databases, async () => {});
}

/** Does nothing when newer access was stored meanwhile: the next call then ends the sessions of both. */
async function clearEnding(session: Session, projectId: string, revision: number) {
  await inTransaction(session, async () => {
    const { rowCount } = await session.query(
      'UPDATE project SET unenforced = false WHERE project_id = $1 AND access_revision = $2',
      [projectId, revision],
    );
    if (rowCount === 0) return;
    await session.query(
      `UPDATE login SET end_from = NULL, stale = false
       FROM branch WHERE branch.branch_id = login.branch_id AND project_id = $1 AND (end_from IS NOT NULL OR stale)`,
      [projectId],
    );
  });
}
