import type { Host } from '../operations/host.ts';
import { resumeUnlessCloning } from '../operations/live-source.ts';
import { showClients, withConsole } from '../pooler/console.ts';
import { canPause, killClients, reconnectServers } from '../pooler/pause.ts';
import { inTransaction, type Queryable, type Session } from '../postgres/connect.ts';
import { takeLock } from '../postgres/locks.ts';
import { restoreLogins } from '../postgres/roles.ts';

/** Longest wait for a session that was told to end. */
const END_WITHIN_MS = 4_000;

/**
 * Brings logins, both ports and open sessions to obey what `keepAccess` noted. It goes by what is still there,
 * not by what changed, so that after a crash it ends what an earlier call left.
 * @param session holds the lock until its holder lets go
 * @throws HostError RULES_NOT_APPLIED, POOLER_UNAVAILABLE
 */
export async function enforceAccess(host: Host, session: Session, projectId: string): Promise<void> {
  await takeLock(session, `access:${projectId}`);
  const { rows: noted } = await session.query<{ access_revision: number }>(
    'SELECT access_revision FROM project WHERE project_id = $1',
    [projectId],
  );
  const ending = await loginsToEnd(session, projectId);
  await withClientsOut(host, session, ending.thrownOut, async () => {
    await inTransaction(session, () => restoreLogins(session, projectId));
    await host.rules.publish();
    await endDirectSessions(session, projectId);
  });
  for (const database of ending.reconnected) await reconnectServers(host.settings, database);
  await throwOutStrangers(host, session, projectId);
  await forgetEnding(session, projectId, ending.logins, noted[0]?.access_revision ?? -1);
}

/** Projects whose sessions may not obey yet: the agent died while it enforced their access. */
export async function unenforcedProjects(db: Queryable): Promise<string[]> {
  const { rows } = await db.query<{ project_id: string }>(
    'SELECT project_id FROM project WHERE unenforced ORDER BY project_id',
  );
  return rows.map(({ project_id }) => project_id);
}

interface Ending {
  logins: { login: string; end_from: string }[];
  /** Databases whose pooled clients have to go. */
  thrownOut: string[];
  /** Databases whose pooled clients stay, on other sessions with PostgreSQL. */
  reconnected: string[];
}

async function loginsToEnd(session: Session, projectId: string): Promise<Ending> {
  const { rows } = await session.query<{
    login: string;
    end_from: string;
    database: string;
    closed: boolean;
    all: boolean;
  }>(
    `SELECT login, end_from::text, database, closed, end_from = '-infinity' AS all
     FROM login JOIN branch USING (branch_id) WHERE project_id = $1 AND end_from IS NOT NULL`,
    [projectId],
  );
  // The pooler throws out the clients of a closed branch itself, when its entry goes.
  const open = rows.filter(({ closed }) => !closed);
  const thrownOut = [...new Set(open.filter(({ all }) => all).map(({ database }) => database))];
  const reconnected = open.map(({ database }) => database).filter((name) => !thrownOut.includes(name));
  return { logins: rows, thrownOut, reconnected: [...new Set(reconnected)] };
}

/** Runs `change` while the pooler has no clients of these databases; who comes meanwhile waits until it is over. */
async function withClientsOut(
  host: Host,
  session: Session,
  databases: string[],
  change: () => Promise<void>,
): Promise<void> {
  const { settings } = host;
  const killable = databases.filter(canPause);
  try {
    for (const database of killable) await killClients(settings, database);
    await change();
  } finally {
    for (const database of killable) await resumeUnlessCloning(settings, session, database);
  }
  for (const database of databases.filter((name) => !canPause(name))) await takeOutAndIn(host, database);
}

/** For names too long for the console: without its entry, the pooler throws the clients out. */
async function takeOutAndIn({ postgres, rules }: Host, database: string): Promise<void> {
  const close = (closed: boolean) =>
    postgres.query('UPDATE branch SET closed = $2 WHERE database = $1', [database, closed]);
  await close(true);
  try {
    await rules.publish();
  } finally {
    await close(false);
    await rules.publish();
  }
}

/** Those of ended logins, and those from addresses that no rule lets in. The pooler's come over the socket. */
const NOT_ALLOWED = `
  FROM pg_stat_activity AS session
  JOIN branch ON datname = database AND project_id = $1
  LEFT JOIN login ON login = usename
  WHERE client_addr IS NOT NULL
    AND (backend_start >= end_from OR NOT EXISTS (
      SELECT FROM network_rule AS rule
      WHERE rule.project_id = $1 AND (rule.branch_id IS NULL OR rule.branch_id = branch.branch_id)
        AND client_addr <<= rule.cidr))`;

const endDirectSessions = (session: Session, projectId: string) =>
  session.query(`SELECT pg_terminate_backend(pid, ${END_WITHIN_MS}) ${NOT_ALLOWED}`, [projectId]);

/** Pooled clients from addresses that no rule lets in any more; the console can only end a whole database's. */
async function throwOutStrangers(host: Host, session: Session, projectId: string): Promise<void> {
  const clients = await withConsole(host.settings, showClients);
  const { rows } = await session.query<{ database: string }>(
    `SELECT DISTINCT client.database
     FROM unnest($2::text[], $3::inet[]) AS client (database, address)
     JOIN branch ON branch.database = client.database AND project_id = $1
     WHERE NOT EXISTS (
       SELECT FROM network_rule AS rule
       WHERE rule.project_id = $1 AND (rule.branch_id IS NULL OR rule.branch_id = branch.branch_id)
         AND address <<= rule.cidr)`,
    [projectId, clients.map(({ database }) => database), clients.map(({ address }) => address)],
  );
  await withClientsOut(
    host,
    session,
    rows.map(({ database }) => database),
    async () => {},
  );
}

/** Unless more was noted meanwhile. */
async function forgetEnding(session: Session, projectId: string, logins: Ending['logins'], revision: number) {
  await session.query(
    `UPDATE login SET end_from = NULL
     FROM unnest($1::text[], $2::timestamptz[]) AS ended (login, end_from)
     WHERE login.login = ended.login AND login.end_from = ended.end_from`,
    [logins.map(({ login }) => login), logins.map(({ end_from }) => end_from)],
  );
  await session.query(
    'UPDATE project SET unenforced = false WHERE project_id = $1 AND access_revision = $2',
    [projectId, revision],
  );
}
