import { setTimeout as sleep } from 'node:timers/promises';
import type { Host } from '../host.ts';
import { showClientsAndLogins, withConsole } from '../pooler/console.ts';
import { reconnectServers } from '../pooler/pause.ts';
import { inTransaction, type Queryable, type Session } from '../postgres/connect.ts';
import { takeLock } from '../postgres/locks.ts';
import { restoreLogins } from '../postgres/roles.ts';

/** Longest wait for a session that was told to end. */
const END_WITHIN_MS = 4_000;
/** A login takes some round trips; one that is kept open for longer than this is ended. */
const LOG_IN_WITHIN_MS = 2_000;
const LOOK_EVERY_MS = 10;

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
  await inTransaction(session, () => restoreLogins(session, projectId));
  await host.rules.publish();
  await waitForLogins(session);
  await endDirectSessions(session, projectId);
  await throwClientsOut(host, ending.thrownOut);
  for (const database of ending.reconnected) await reconnectServers(host.settings, database);
  await throwOutStrangers(host, session, projectId);
  await forgetEnding(session, projectId, noted[0]?.access_revision ?? -1);
}

/** Projects whose sessions may not obey yet: the agent died while it enforced their access. */
export async function unenforcedProjects(db: Queryable): Promise<string[]> {
  const { rows } = await db.query<{ project_id: string }>(
    'SELECT project_id FROM project WHERE unenforced ORDER BY project_id',
  );
  return rows.map(({ project_id }) => project_id);
}

interface Ending {
  /** Databases whose pooled clients have to go. */
  thrownOut: string[];
  /** Databases whose pooled clients stay, on other sessions with PostgreSQL. */
  reconnected: string[];
}

async function loginsToEnd(session: Session, projectId: string): Promise<Ending> {
  // The pooler throws out the clients of a closed branch itself, when its entry goes.
  const { rows } = await session.query<{ database: string; all: boolean }>(
    `SELECT database, bool_or(end_from = '-infinity') AS all
     FROM login JOIN branch USING (branch_id)
     WHERE project_id = $1 AND end_from IS NOT NULL AND NOT closed GROUP BY database`,
    [projectId],
  );
  const named = (all: boolean) => rows.filter((row) => row.all === all).map(({ database }) => database);
  return { thrownOut: named(true), reconnected: named(false) };
}

/**
 * A login under way goes by the password and the rules that were there when it began, and has no name yet by which
 * it could be ended. Other branches' are waited for as well.
 */
async function waitForLogins(session: Session): Promise<void> {
  const { rows } = await session.query<{ now: string }>('SELECT clock_timestamp()::text AS now');
  const underWay = `FROM pg_stat_activity
    WHERE state = 'starting' AND client_addr IS NOT NULL AND backend_start < $1::timestamptz`;
  const values = [rows[0]?.now];
  for (const deadline = performance.now() + LOG_IN_WITHIN_MS; ; await sleep(LOOK_EVERY_MS)) {
    if ((await session.query(`SELECT ${underWay}`, values)).rowCount === 0) return;
    if (performance.now() > deadline) break;
  }
  await session.query(`SELECT pg_terminate_backend(pid, ${END_WITHIN_MS}) ${underWay}`, values);
}

/**
 * Ends all clients that the pooler has in these databases, and whoever is logging in. They can come again at once, so it
 * is done after what they may do has changed. Not by the console's KILL, which lets logins under way go on.
 */
async function throwClientsOut({ rules }: Host, databases: string[]): Promise<void> {
  if (databases.length > 0) await rules.publishWithout(databases);
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

/** Pooled clients from addresses that no rule lets in any more; only a whole database's can be ended. */
async function throwOutStrangers(host: Host, session: Session, projectId: string): Promise<void> {
  const clients = await withConsole(host.settings, showClientsAndLogins);
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
  await throwClientsOut(
    host,
    rows.map(({ database }) => database),
  );
}

/** Unless more was noted meanwhile: then the next call ends what both have to. */
async function forgetEnding(session: Session, projectId: string, revision: number) {
  await inTransaction(session, async () => {
    const { rowCount } = await session.query(
      'UPDATE project SET unenforced = false WHERE project_id = $1 AND access_revision = $2',
      [projectId, revision],
    );
    if (rowCount === 0) return;
    await session.query(
      `UPDATE login SET end_from = NULL
       FROM branch WHERE branch.branch_id = login.branch_id AND project_id = $1 AND end_from IS NOT NULL`,
      [projectId],
    );
  });
}
