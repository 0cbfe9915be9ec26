import { PLATFORM_ROLE } from '../servers/configuration.ts';
import type { AgentSettings } from '../settings.ts';
import { identifier, inDatabase, type Session } from './connect.ts';
import { takeLock } from './locks.ts';
import { migrate } from './migrations.ts';

const MAINTENANCE_DATABASE = 'postgres';
/** Databases that PUBLIC may connect to in a new cluster, or after CREATE DATABASE. */
const CLOSED_TO_TENANTS = [PLATFORM_ROLE, MAINTENANCE_DATABASE, 'template1'];

/**
 * Makes the agent's own database, migrates its tables to this release, and closes the cluster's own databases to
 * tenants. Two agent processes may call it concurrently.
 */
export async function makeAgentTables(settings: AgentSettings): Promise<void> {
  await inDatabase(settings, MAINTENANCE_DATABASE, async (session) => {
    const { exists, open } = await inspectDatabases(session);
    if (exists && open.length === 0) return;
    await takeLock(session, 'agent-database');
    await createDatabase(session);
  });
  await inDatabase(settings, PLATFORM_ROLE, (session) => migrate(session));
}

async function createDatabase(session: Session): Promise<void> {
  const { exists } = await inspectDatabases(session);
  if (!exists) await session.query(`CREATE DATABASE ${identifier(PLATFORM_ROLE)}`);
  const { open } = await inspectDatabases(session);
  for (const name of open) await session.query(`REVOKE ALL ON DATABASE ${identifier(name)} FROM PUBLIC`);
}

/** Whether the agent's own database exists, and the databases that are still open to tenants. */
async function inspectDatabases(session: Session): Promise<{ exists: boolean; open: string[] }> {
  const { rows } = await session.query<{ name: string; is_open: boolean }>(
    `SELECT datname AS name, has_database_privilege('public', oid, 'CONNECT') AS is_open
     FROM pg_database WHERE datname = ANY ($1)`,
    [CLOSED_TO_TENANTS],
  );
  return {
    exists: rows.some(({ name }) => name === PLATFORM_ROLE),
    open: rows.filter(({ is_open }) => is_open).map(({ name }) => name),
  };
}
