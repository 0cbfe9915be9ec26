import type { AgentSettings } from '../process/settings.ts';
import { identifier, inDatabase, inTransaction, PLATFORM_ROLE, type Session } from './connect.ts';
import { withHostLock } from './locks.ts';

/** A migration fails instead of waiting longer for another session's lock. The next recovery retries it. */
const LOCK_WITHIN_MS = 5_000;

/**
 * The tables as the releases before numbered migrations made them, and what these releases altered later.
 * Every statement is idempotent, because such a host has the tables already.
 */
const INITIAL = `
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
  -- A branch without rows here has no open ports: it is not prepared yet, or being dropped.
  CREATE TABLE IF NOT EXISTS login (
    login text PRIMARY KEY,
    branch_id uuid NOT NULL REFERENCES branch ON DELETE CASCADE,
    verifier text NOT NULL,
    end_from timestamptz -- sessions that began at or after it have to be ended; null: none
  );
  -- What a branch has used, and the statistics up to which this was counted. No totals until it is proven.
  CREATE TABLE IF NOT EXISTS branch_usage (
    branch_id uuid PRIMARY KEY REFERENCES branch ON DELETE CASCADE,
    seen jsonb,
    totals jsonb
  );
  -- Branches that existed before their usage was counted.
  INSERT INTO branch_usage (branch_id, totals)
    SELECT branch_id, '{"cpu_seconds":0,"connections":0,"committed":0,"rolled_back":0,"fetched":0,"inserted":0,'
                      '"updated":0,"deleted":0}'
    FROM branch JOIN pg_database ON datname = database
    ON CONFLICT DO NOTHING;
  -- One row: the state from which the measurement of all branches together continues.
  CREATE TABLE IF NOT EXISTS meter (
    id integer PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    state jsonb NOT NULL
  );
  -- Too many connection attempts: refused at both ports until then.
  CREATE TABLE IF NOT EXISTS shut_branch (
    branch_id uuid PRIMARY KEY REFERENCES branch ON DELETE CASCADE,
    until timestamptz NOT NULL
  );
  CREATE INDEX IF NOT EXISTS network_rule_by_project ON network_rule (project_id);
  CREATE INDEX IF NOT EXISTS login_by_branch ON login (branch_id);
  ALTER TABLE project ADD COLUMN IF NOT EXISTS write_blocked_since timestamptz,
                      ADD COLUMN IF NOT EXISTS unenforced boolean NOT NULL DEFAULT false;
  ALTER TABLE branch ADD COLUMN IF NOT EXISTS closed boolean NOT NULL DEFAULT false;
  ALTER TABLE login ADD COLUMN IF NOT EXISTS end_from timestamptz;
`;

const BLOCKED_BRANCH = `
  ALTER TABLE shut_branch RENAME TO blocked_branch;
  ALTER TABLE blocked_branch RENAME CONSTRAINT shut_branch_pkey TO blocked_branch_pkey;
  ALTER TABLE blocked_branch RENAME CONSTRAINT shut_branch_branch_id_fkey TO blocked_branch_branch_id_fkey;
`;

/** A branch can be blocked for several reasons, each until a time of its own. */
const BLOCK_REASON = `
  ALTER TABLE blocked_branch ADD COLUMN reason text NOT NULL DEFAULT 'attempts';
  ALTER TABLE blocked_branch ALTER COLUMN reason DROP DEFAULT,
                             DROP CONSTRAINT blocked_branch_pkey,
                             ADD CONSTRAINT blocked_branch_pkey PRIMARY KEY (branch_id, reason);
`;

/** Blocks for too many attempts are blocks of one address now. */
const BLOCKED_ADDRESS = `
  -- Too many connection attempts: refused at both ports until then.
  CREATE TABLE blocked_address (
    branch_id uuid NOT NULL REFERENCES branch ON DELETE CASCADE,
    address cidr, -- null: every address
    until timestamptz NOT NULL,
    UNIQUE NULLS NOT DISTINCT (branch_id, address)
  );
  WITH moved AS (
    DELETE FROM blocked_branch
    WHERE reason = 'attempts'
    RETURNING branch_id, until
  )
  INSERT INTO blocked_address (branch_id, until) SELECT branch_id, until FROM moved;
`;

/**
 * Closed databases. The row is written before its database, so that leftovers of a crash can be attributed.
 */
const SNAPSHOT = `
  CREATE TABLE snapshot (
    snapshot_id uuid PRIMARY KEY,
    project_id uuid NOT NULL,
    branch_id uuid NOT NULL, -- of which it was taken; it may have been dropped since
    source text NOT NULL, -- its database then
    kind text NOT NULL, -- taken of a branch, its checkpoint, replaced by a reset, or left by a deleted branch
    independent boolean NOT NULL DEFAULT false, -- it shares no block with its source
    taken_at timestamptz NOT NULL DEFAULT now(),
    changes text -- what the source had changed then, by its statistics; null: unknown
  );
`;

/**
 * What a branch was like before a rehearsed migration, and what is known of it so far. It is gone with the
 * branch.
 */
const REHEARSAL = `
  CREATE TABLE rehearsal (
    branch_id uuid PRIMARY KEY REFERENCES branch ON DELETE CASCADE,
    database text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    limits jsonb NOT NULL,
    tables jsonb NOT NULL,
    schema text NOT NULL,
    wal_from pg_lsn NOT NULL,
    locks jsonb NOT NULL DEFAULT '{}', -- what the samples have shown so far
    finished_at timestamptz,
    report jsonb -- null: it is running
  );
`;

/**
 * Where the content of a database comes from. Rows of dropped databases stay while a clone of them is there.
 */
const DATABASE_ORIGIN = `
  CREATE TABLE database_origin (
    oid oid PRIMARY KEY,
    source oid NOT NULL,
    source_lsn pg_lsn NOT NULL, -- what the source has changed before it is in the clone
    lsn pg_lsn NOT NULL, -- the clone was complete then
    by_file boolean NOT NULL -- its files were copied, with a checkpoint before and after, and not through the WAL
  );
`;

/** Networks that PostgreSQL's rule file names, each with a role whose members may connect from there. */
const NETWORK = `
  CREATE TABLE network (
    role text PRIMARY KEY, -- a random name, because every login can list roles
    project_id uuid NOT NULL REFERENCES project ON DELETE CASCADE,
    cidr cidr NOT NULL,
    UNIQUE (project_id, cidr)
  );
  -- One row: how often members of networks were changed, also by another process.
  CREATE TABLE network_members (
    id integer PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    version bigint NOT NULL DEFAULT 0
  );
  INSERT INTO network_members DEFAULT VALUES;
`;

/** Whose projects are bounded together. */
const TENANT = `
  ALTER TABLE project ADD COLUMN tenant text; -- null: not known yet
`;

/** The limits of branches that differ from the host's default. */
const CONNECTION_ATTEMPTS = `
  ALTER TABLE branch ADD COLUMN connection_attempts integer; -- a minute, from one address; null: the default
`;

/** Settings of PostgreSQL that a tenant has given the database of a branch. */
const BRANCH_SETTINGS = `
  ALTER TABLE branch ADD COLUMN settings jsonb; -- by name; null: none
  ALTER TABLE branch ADD COLUMN settings_stale boolean NOT NULL DEFAULT false; -- its database may have others
  CREATE INDEX branch_with_settings ON branch (project_id) WHERE settings IS NOT NULL;
  CREATE INDEX branch_with_stale_settings ON branch (project_id) WHERE settings_stale;
`;

/** The role of `agent/privileges/own-sessions.ts`, with which logins see and end their own sessions. */
const SESSIONS_ROLE = `
  DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'branchgate_sessions') THEN
      CREATE ROLE branchgate_sessions NOLOGIN;
    END IF;
    GRANT pg_signal_backend, pg_read_all_stats TO branchgate_sessions;
  END $$;
`;

/** How many spares a project, or one of its snapshots, is to have. */
const SPARES = `
  ALTER TABLE project ADD COLUMN spares integer; -- of each snapshot without a number; null: automatic
  ALTER TABLE snapshot ADD COLUMN spares integer; -- null: as the project
`;

/** The query login has no password. What tenants changed of their logins is reported for a while. */
const RESTORED_LOGIN = `
  ALTER TABLE login ALTER COLUMN verifier DROP NOT NULL;
  CREATE TABLE restored_login (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    branch_id uuid NOT NULL REFERENCES branch ON DELETE CASCADE,
    login text NOT NULL,
    password boolean NOT NULL, -- it had been changed
    settings text[] NOT NULL, -- the names of those that were removed
    restored_at timestamptz NOT NULL DEFAULT clock_timestamp()
  );
`;

/** Branches that follow a database elsewhere. The row is there from the copy on; without a time it is not followed yet. */
const FOLLOWING = `
  CREATE TABLE following (
    branch_id uuid PRIMARY KEY REFERENCES branch ON DELETE CASCADE,
    project_id uuid NOT NULL,
    database text NOT NULL,
    slot text NOT NULL,
    publication text, -- that exists at the source; null: the agent made it
    tables jsonb, -- by schema and name; null: all of the source
    known jsonb NOT NULL DEFAULT '[]', -- statements of the schema difference when the rows were copied
    since timestamptz, -- null: it does not follow yet, or no more
    problem jsonb, -- why it stands still; null: it follows
    cutover text, -- refusing, finishing or done; null: none
    refused_at timestamptz, -- writes at the source
    outcome jsonb, -- of a cut-over, from its last step on
    additions jsonb NOT NULL DEFAULT '[]' -- what was added here by itself
  );
`;

const FOLLOWING_POSITIONS = `
  -- Where the source was when: position, and from and to when, in milliseconds since 1970.
  ALTER TABLE following ADD COLUMN positions jsonb NOT NULL DEFAULT '[]';
`;

/** The host that follows this one, which gets all WAL of this cluster. */
const STANDBY = `
  CREATE TABLE standby (
    login text PRIMARY KEY, -- the slot has the same name
    standby_id uuid NOT NULL,
    cidrs text[] NOT NULL -- from which it connects
  );
`;

/** Logins of other hosts, to which projects move, by `moverLogin`. */
const MOVER = `
  CREATE TABLE mover (
    login text PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES project ON DELETE CASCADE,
    database text NOT NULL, -- of main
    cidrs cidr[] NOT NULL, -- from which it connects
    admitted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    valid_until timestamptz NOT NULL
  );
  -- Branches that can only be read until the release.
  CREATE TABLE frozen_branch (
    login text NOT NULL REFERENCES mover ON DELETE CASCADE,
    branch_id uuid NOT NULL,
    print text, -- of its content, since its clients ended; null: they have not ended yet
    PRIMARY KEY (login, branch_id)
  );
  -- A call that comes after the release must not make the login again.
  CREATE TABLE released_mover (
    login text PRIMARY KEY,
    released_at timestamptz NOT NULL DEFAULT clock_timestamp()
  );
  ALTER TABLE following ADD COLUMN print text; -- of the schema of another host, when it was copied
`;

/** Whether commits to its databases wait for the standby. */
const DURABILITY = `
  ALTER TABLE project ADD COLUMN durability text NOT NULL DEFAULT 'async';
`;

const QUIET_SINCE = `
  ALTER TABLE frozen_branch ADD COLUMN quiet_since text; -- counts of its transactions when it was compared; null: it was not
`;

/**
 * What an operation on one branch reads by. `access_change` has a row for each change of the access to a branch, or to all
 * branches of a project, so that a process reads only what has changed since its last read.
 */
const ACCESS_CHANGE = `
  ALTER TABLE login ADD COLUMN stale boolean NOT NULL DEFAULT false; -- the role may differ from what was stored
  CREATE INDEX login_to_enforce ON login (branch_id) WHERE end_from IS NOT NULL OR stale;
  CREATE INDEX project_unenforced ON project (project_id) WHERE unenforced;
  CREATE INDEX branch_by_project ON branch (project_id);
  CREATE INDEX branch_closed ON branch (project_id) WHERE closed;
  CREATE INDEX branch_with_attempts ON branch (project_id) WHERE connection_attempts IS NOT NULL;
  CREATE INDEX network_rule_of_branch ON network_rule (project_id, branch_id);
  CREATE INDEX network_rule_by_branch ON network_rule (branch_id) WHERE branch_id IS NOT NULL;
  DROP INDEX network_rule_by_project;
  CREATE INDEX snapshot_by_project ON snapshot (project_id);
  CREATE INDEX snapshot_with_spares ON snapshot (project_id) WHERE spares IS NOT NULL;
  CREATE INDEX restored_login_by_branch ON restored_login (branch_id);
  CREATE TABLE access_change (
    id uuid NOT NULL, -- of a branch, of a project for all of its branches, or the digits of a network's role
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
  );
  CREATE INDEX access_change_by_xid ON access_change (xid);
  CREATE FUNCTION record_access_change() RETURNS trigger LANGUAGE plpgsql AS $$
  DECLARE
    changed jsonb := to_jsonb(coalesce(NEW, OLD));
  BEGIN
    INSERT INTO access_change (id) VALUES (
      CASE TG_TABLE_NAME
        WHEN 'network_rule' THEN coalesce(changed ->> 'branch_id', changed ->> 'project_id')
        WHEN 'network' THEN substr(changed ->> 'role', 5)
        ELSE changed ->> 'branch_id'
      END::uuid);
    RETURN NULL;
  END $$;
  CREATE TRIGGER access_change AFTER INSERT OR DELETE OR UPDATE OF database, closed, connection_attempts ON branch
    FOR EACH ROW EXECUTE FUNCTION record_access_change();
  CREATE TRIGGER access_change AFTER INSERT OR DELETE OR UPDATE OF login, branch_id, verifier ON login
    FOR EACH ROW EXECUTE FUNCTION record_access_change();
  CREATE TRIGGER access_change AFTER INSERT OR DELETE OR UPDATE ON network_rule
    FOR EACH ROW EXECUTE FUNCTION record_access_change();
  CREATE TRIGGER access_change AFTER INSERT OR DELETE OR UPDATE ON network
    FOR EACH ROW EXECUTE FUNCTION record_access_change();
`;

const FORCED_POLICIES = `
  -- Digests of entries of dumps that differed, instead of statements.
  UPDATE following SET known = '[]';
  ALTER TABLE following ADD COLUMN forced jsonb NOT NULL DEFAULT '[]'; -- tables whose policies are forced at the end
  ALTER TABLE following ADD COLUMN left_alone jsonb NOT NULL DEFAULT '{}'; -- schemas and tables, as the request named them
`;

/**
 * Rules that open SQL over HTTP alone have a table of their own, so nothing that opens a port can read them.
 */
const SQL_RULE = `
  CREATE TABLE sql_rule (
    project_id uuid NOT NULL REFERENCES project ON DELETE CASCADE,
    branch_id uuid, -- null: every branch of the project
    cidr cidr NOT NULL
  );
  CREATE INDEX sql_rule_of_branch ON sql_rule (project_id, branch_id);
  CREATE INDEX sql_rule_by_branch ON sql_rule (branch_id) WHERE branch_id IS NOT NULL;
`;

/** How far the changes of `main` are that are being applied, or that have stopped. */
const APPLIED_CHANGE = `
  CREATE TABLE applied_change (
    change_id uuid PRIMARY KEY,
    job_id uuid NOT NULL,
    branch_id uuid NOT NULL REFERENCES branch ON DELETE CASCADE,
    done integer NOT NULL, -- steps that are applied
    xid xid8, -- of the step that is about to commit
    login text, -- of the sessions that a kill leaves
    alone jsonb -- the schema, and the invalid indexes, before a step without a transaction
  );
`;

/** How long a strong lock on a table of `main` would have waited, in the last days. */
const LOCK_WAIT = `
  ALTER TABLE project ADD COLUMN sampled_since timestamptz NOT NULL DEFAULT now();
  CREATE TABLE lock_wait (
    project_id uuid REFERENCES project ON DELETE CASCADE,
    relation oid, -- in the database of main
    writers boolean, -- of a lock that blocks writers alone
    hour timestamptz,
    waits smallint[] NOT NULL, -- samples by bucket of the wait
    sessions integer NOT NULL, -- different ones that had it in a minute
    names jsonb NOT NULL, -- of the sessions that were waited for, with their samples
    PRIMARY KEY (project_id, relation, writers, hour)
  );
  CREATE TABLE lock_sample (
    hour timestamptz PRIMARY KEY,
    samples integer NOT NULL
  );
`;

/** The login of a call is recorded before its job begins. */
const CHANGE_LOGIN = 'ALTER TABLE applied_change ALTER job_id DROP NOT NULL';

/** Extensions that each new database of a project gets. The row is older than that of the project. */
const PROJECT_EXTENSIONS = `
  CREATE TABLE project_extensions (
    project_id uuid PRIMARY KEY,
    names text[] NOT NULL
  );
`;

/** Bytes of the database when the rehearsal began; null: they are not known, so its growth is not bounded. */
const REHEARSED_BYTES = 'ALTER TABLE rehearsal ADD COLUMN bytes bigint';

/**
 * SQL that makes and alters the agent's tables. The first entry has number 1, and so on. A migration that was
 * released is never changed, removed or moved; a change of the tables is a new entry at the end.
 */
export const MIGRATIONS: readonly string[] = [
  INITIAL,
  BLOCKED_BRANCH,
  BLOCK_REASON,
  BLOCKED_ADDRESS,
  SNAPSHOT,
  DATABASE_ORIGIN,
  REHEARSAL,
  NETWORK,
  TENANT,
  CONNECTION_ATTEMPTS,
  SESSIONS_ROLE,
  RESTORED_LOGIN,
  SPARES,
  FOLLOWING,
  FOLLOWING_POSITIONS,
  STANDBY,
  MOVER,
  DURABILITY,
  QUIET_SINCE,
  ACCESS_CHANGE,
  FORCED_POLICIES,
  SQL_RULE,
  BRANCH_SETTINGS,
  APPLIED_CHANGE,
  LOCK_WAIT,
  CHANGE_LOGIN,
  PROJECT_EXTENSIONS,
  REHEARSED_BYTES,
];

/**
 * Runs the migrations that the session's database does not have yet, each in a transaction with the record of
 * its number in `schema_version`. Concurrent calls wait for each other. A failed or interrupted migration
 * leaves the database at the version before it.
 * @throws Error when the database has migrations of a newer release
 */
export async function migrate(session: Session, migrations: readonly string[] = MIGRATIONS): Promise<void> {
  // Checked without the lock first: usually nothing is to be done, and no other session can delay the start.
  while ((await readVersion(session)) < migrations.length) {
    await inTransaction(session, () => migrateOnce(session, migrations));
  }
  const version = await readVersion(session);
  if (version > migrations.length)
    throw new Error(
      `the agent's tables have version ${version}, but this agent knows ${migrations.length} only: install the newer release`,
    );
}

async function migrateOnce(session: Session, migrations: readonly string[]): Promise<void> {
  await session.query(`SET LOCAL lock_timeout = ${LOCK_WITHIN_MS}`);
  await session.query("SELECT pg_advisory_xact_lock(hashtextextended('migrations', 0))");
  const version = await readVersion(session);
  const migration = migrations[version];
  // Another session has run it while this one waited for the lock.
  if (migration === undefined) return;
  await session.query(
    `CREATE TABLE IF NOT EXISTS schema_version (
       version integer PRIMARY KEY,
       migrated_at timestamptz NOT NULL DEFAULT now()
     )`,
  );
  await session.query(migration);
  await session.query('INSERT INTO schema_version (version) VALUES ($1)', [version + 1]);
}

/**
 * Number of the last migration that the database has; 0 for a database of a release before numbered
 * migrations.
 */
async function readVersion(session: Session): Promise<number> {
  // Not to_regclass, which may not see yet what another session has just committed.
  const { rows } = await session.query(
    "SELECT FROM pg_tables WHERE schemaname = 'public' AND tablename = 'schema_version'",
  );
  if (rows.length === 0) return 0;
  const found = await session.query<{ version: number }>(
    'SELECT coalesce(max(version), 0) AS version FROM schema_version',
  );
  return found.rows[0]?.version ?? 0;
}

const MAINTENANCE_DATABASE = 'postgres';
/** Databases that PUBLIC may connect to in a new cluster, or after CREATE DATABASE. */
const CLOSED_TO_TENANTS = [PLATFORM_ROLE, MAINTENANCE_DATABASE, 'template1'];

/**
 * Makes the agent's own database, migrates its tables to this release, and closes the cluster's own databases
 * to tenants. Two agent processes may call it concurrently.
 */
export async function makeAgentTables(settings: AgentSettings): Promise<void> {
  await inDatabase(settings, MAINTENANCE_DATABASE, async (session) => {
    const { exists, open } = await inspectDatabases(session);
    if (exists && open.length === 0) return;
    await withHostLock(session, 'agent-database', () => createDatabase(session));
  });
  await inDatabase(settings, PLATFORM_ROLE, (session) => migrate(session));
}

/** Whether `makeAgentTables` has something to do. */
export async function needsAgentTables(settings: AgentSettings): Promise<boolean> {
  const { exists, open } = await inDatabase(settings, MAINTENANCE_DATABASE, inspectDatabases);
  if (!exists || open.length > 0) return true;
  return (await inDatabase(settings, PLATFORM_ROLE, readVersion)) < MIGRATIONS.length;
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
