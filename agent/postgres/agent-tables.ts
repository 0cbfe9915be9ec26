import { PLATFORM_ROLE } from '../servers/configuration.ts';
import type { AgentSettings } from '../settings.ts';
import { identifier, inDatabase } from './connect.ts';

const MAINTENANCE_DATABASE = 'postgres';

/** All the agent knows of its branches; the databases' own comments repeat it. */
const TABLES = `
  CREATE TABLE IF NOT EXISTS project (
    project_id uuid PRIMARY KEY,
    access_revision integer NOT NULL
  );
  CREATE TABLE IF NOT EXISTS network_rule (
    project_id uuid NOT NULL REFERENCES project ON DELETE CASCADE,
    branch_id uuid, -- null: every branch of the project
    cidr cidr NOT NULL
  );
  CREATE INDEX IF NOT EXISTS network_rule_by_project ON network_rule (project_id);
  CREATE TABLE IF NOT EXISTS branch (
    branch_id uuid PRIMARY KEY,
    project_id uuid NOT NULL,
    job_id uuid NOT NULL, -- the job that makes or made it
    database text NOT NULL UNIQUE
  );
  -- A branch without rows here is open to nobody: not prepared yet, or being dropped.
  CREATE TABLE IF NOT EXISTS login (
    login text PRIMARY KEY,
    branch_id uuid NOT NULL REFERENCES branch ON DELETE CASCADE,
    verifier text NOT NULL
  );
  CREATE INDEX IF NOT EXISTS login_by_branch ON login (branch_id);
`;

/** Makes what is missing of the agent's own database, and closes the cluster's own databases to tenants. */
export async function makeAgentTables(settings: AgentSettings): Promise<void> {
  await inDatabase(settings, MAINTENANCE_DATABASE, async (session) => {
    const { rows } = await session.query('SELECT FROM pg_database WHERE datname = $1', [PLATFORM_ROLE]);
    if (rows.length === 0) await session.query(`CREATE DATABASE ${identifier(PLATFORM_ROLE)}`);
    const open = await session.query<{ datname: string }>(
      `SELECT datname FROM pg_database
       WHERE datname = ANY ($1) AND has_database_privilege('public', oid, 'CONNECT')`,
      [[PLATFORM_ROLE, MAINTENANCE_DATABASE, 'template1']],
    );
    for (const { datname } of open.rows) {
      await session.query(`REVOKE ALL ON DATABASE ${identifier(datname)} FROM PUBLIC`);
    }
  });
  await inDatabase(settings, PLATFORM_ROLE, (session) => session.query(TABLES));
}
