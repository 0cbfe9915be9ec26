import { ZERO_TOTALS } from '../measurement/counters.ts';
import { PLATFORM_ROLE } from '../servers/configuration.ts';
import type { AgentSettings } from '../settings.ts';
import { identifier, inDatabase } from './connect.ts';

const MAINTENANCE_DATABASE = 'postgres';

/** All the agent knows of its branches; the databases' own comments repeat it. */
const TABLES = `
  CREATE TABLE IF NOT EXISTS project (
    project_id uuid PRIMARY KEY,
    access_revision integer NOT NULL,
    write_blocked_since timestamptz, -- null: not blocked
    unenforced boolean NOT NULL DEFAULT false -- sessions that the access excludes may still be open
  );
  CREATE TABLE IF NOT EXISTS network_rule (
    project_id uuid NOT NULL REFERENCES project ON DELETE CASCADE,
    branch_id uuid, -- null: every branch of the project
    cidr cidr NOT NULL
  );
  CREATE TABLE IF NOT EXISTS branch (
    branch_id uuid PRIMARY KEY,
    project_id uuid NOT NULL,
    job_id uuid NOT NULL, -- the job that makes or made it
    database text NOT NULL UNIQUE,
    closed boolean NOT NULL DEFAULT false
  );
  -- A branch without rows here is open to nobody: not prepared yet, or being dropped.
  CREATE TABLE IF NOT EXISTS login (
    login text PRIMARY KEY,
    branch_id uuid NOT NULL REFERENCES branch ON DELETE CASCADE,
    verifier text NOT NULL,
    end_from timestamptz -- its sessions that began from then on are to be ended; null: none
  );
  -- What a branch has used, and the statistics this was counted up to. Without totals until it is proven.
  CREATE TABLE IF NOT EXISTS branch_usage (
    branch_id uuid PRIMARY KEY REFERENCES branch ON DELETE CASCADE,
    seen jsonb,
    totals jsonb
  );
  -- Branches that were there before their use was counted.
  INSERT INTO branch_usage (branch_id, totals)
    SELECT branch_id, '${JSON.stringify(ZERO_TOTALS)}' FROM branch JOIN pg_database ON datname = database
    ON CONFLICT DO NOTHING;
  -- One row: what the measurement of all branches together goes on from.
  CREATE TABLE IF NOT EXISTS meter (
    id integer PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    state jsonb NOT NULL
  );
  -- Too many connection attempts: refused at both ports until then.
  CREATE TABLE IF NOT EXISTS shut_branch (
    branch_id uuid PRIMARY KEY REFERENCES branch ON DELETE CASCADE,
    until timestamptz NOT NULL
  );
  -- Looked up first: both statements lock their table even where there is nothing to do, and would wait for a session
  -- that a dead agent left, or meet one that waits for them.
  DO $$ BEGIN
    IF to_regclass('network_rule_by_project') IS NULL THEN
      CREATE INDEX network_rule_by_project ON network_rule (project_id);
    END IF;
    IF to_regclass('login_by_branch') IS NULL THEN
      CREATE INDEX login_by_branch ON login (branch_id);
    END IF;
    -- Columns that came later.
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'login'::regclass AND attname = 'end_from') THEN
      ALTER TABLE project ADD COLUMN write_blocked_since timestamptz,
                          ADD COLUMN unenforced boolean NOT NULL DEFAULT false;
      ALTER TABLE branch ADD COLUMN closed boolean NOT NULL DEFAULT false;
      ALTER TABLE login ADD COLUMN end_from timestamptz;
    END IF;
  END $$;
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
