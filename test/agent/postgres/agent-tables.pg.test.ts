import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { readBlocks } from '../../../agent/blocks/stored-blocks.ts';
import { ZERO_TOTALS } from '../../../agent/measurement/counters.ts';
import { MIGRATIONS, makeAgentTables, migrate } from '../../../agent/postgres/agent-tables.ts';
import { inDatabase, PLATFORM_ROLE } from '../../../agent/postgres/connect.ts';
import { eventually } from '../../support/eventually.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

/** The tables exactly as the last release without numbered migrations made them. */
const BEFORE_MIGRATIONS = `
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
    SELECT branch_id, '{"cpu_seconds":0,"connections":0,"committed":0,"rolled_back":0,"fetched":0,"inserted":0,"updated":0,"deleted":0}' FROM branch JOIN pg_database ON datname = database
    ON CONFLICT DO NOTHING;
  -- One row: where the measurement of all branches together continues.
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

const PROJECT = '0197a000-0000-7000-8000-000000000001';
const BRANCH = '0197a000-0000-7000-8000-000000000002';
const JOB = '0197a000-0000-7000-8000-000000000003';

/** A row of each table. */
const ROWS = `
  INSERT INTO project VALUES ('${PROJECT}', 7, '2026-01-01', true);
  INSERT INTO network_rule VALUES ('${PROJECT}', NULL, '192.0.2.0/24');
  INSERT INTO branch VALUES ('${BRANCH}', '${PROJECT}', '${JOB}', 'db_old_prod', true);
  INSERT INTO login VALUES ('u_old', '${BRANCH}', 'SCRAM', '2026-01-02');
  INSERT INTO branch_usage VALUES ('${BRANCH}', '{"seen":1}', '{"totals":2}');
  INSERT INTO meter (state) VALUES ('{"cpu":3}');
  INSERT INTO shut_branch VALUES ('${BRANCH}', 'infinity');
`;

const TABLES = [
  'project',
  'network_rule',
  'branch',
  'login',
  'branch_usage',
  'meter',
  'blocked_branch',
  'blocked_address',
];

let servers: TestHost;
beforeAll(async () => {
  servers = await startHost();
});
afterAll(() => servers.stop());

const inPostgres = (sql: string) => inDatabase(servers.settings, 'postgres', (session) => session.query(sql));
const inAgentDatabase = (sql: string) =>
  inDatabase(servers.settings, PLATFORM_ROLE, (session) => session.query(sql));

beforeEach(async () => {
  await inPostgres(`DROP DATABASE IF EXISTS ${PLATFORM_ROLE} WITH (FORCE)`);
});

const makeOldDatabase = async () => {
  await inPostgres(`CREATE DATABASE ${PLATFORM_ROLE}`);
  await inAgentDatabase(BEFORE_MIGRATIONS);
  await inAgentDatabase(ROWS);
};

const makeTables = () => makeAgentTables(servers.settings);

const contents = async () =>
  Object.fromEntries(
    await Promise.all(
      TABLES.map(async (table) => [table, await servers.query(`SELECT * FROM ${table}`)] as const),
    ),
  );

const versions = async () =>
  (await servers.query<{ version: number }>('SELECT version FROM schema_version ORDER BY version')).map(
    ({ version }) => version,
  );
const ALL_VERSIONS = MIGRATIONS.map((_, index) => index + 1);

/** Columns, defaults, constraints and indexes of the agent's tables. */
const schema = () =>
  servers.query(
    `SELECT relname, attnum::int AS place, attname AS name,
            format_type(atttypid, atttypmod) || ' ' || attnotnull || coalesce(pg_get_expr(adbin, adrelid), '') AS form
     FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0
     LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
     WHERE relnamespace = 'public'::regnamespace
     UNION ALL
     SELECT conrelid::regclass::text, 0, conname, pg_get_constraintdef(oid) FROM pg_constraint
     WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
     ORDER BY 1, 2, 3`,
  );

test('a fresh cluster gets every table, and PUBLIC may connect to no database of the cluster', async () => {
  await makeTables();
  expect(await versions()).toEqual(ALL_VERSIONS);
  expect(Object.keys(await contents())).toEqual(TABLES);
  expect(
    await servers.query(
      "SELECT datname FROM pg_database WHERE datallowconn AND has_database_privilege('public', oid, 'CONNECT')",
    ),
  ).toEqual([]);
  await makeTables();
  expect(await versions()).toEqual(ALL_VERSIONS);
});

describe('a database of the release before numbered migrations', () => {
  test('is migrated without losing a row', async () => {
    await makeOldDatabase();
    await makeTables();
    expect(await versions()).toEqual(ALL_VERSIONS);
    expect(await contents()).toMatchObject({
      project: [
        { project_id: PROJECT, access_revision: 7, unenforced: true, write_blocked_since: expect.any(Date) },
      ],
      network_rule: [{ project_id: PROJECT, branch_id: null, cidr: '192.0.2.0/24' }],
      branch: [
        { branch_id: BRANCH, project_id: PROJECT, job_id: JOB, database: 'db_old_prod', closed: true },
      ],
      login: [{ login: 'u_old', branch_id: BRANCH, verifier: 'SCRAM', end_from: expect.any(Date) }],
      branch_usage: [{ branch_id: BRANCH, seen: { seen: 1 }, totals: { totals: 2 } }],
      meter: [{ id: 1, state: { cpu: 3 } }],
      blocked_branch: [],
      blocked_address: [{ branch_id: BRANCH, address: null }],
    });
    expect(await readBlocks(servers.host.postgres)).toMatchObject([{ branch_id: BRANCH }]);
    expect(await servers.query("SELECT to_regclass('shut_branch') AS old")).toEqual([{ old: null }]);
  });

  test('ends up with the same schema as a fresh one', async () => {
    await makeTables();
    const fresh = await schema();
    await inPostgres(`DROP DATABASE ${PLATFORM_ROLE} WITH (FORCE)`);
    await makeOldDatabase();
    await makeTables();
    expect(await schema()).toEqual(fresh);
  });

  test('gets the columns and rows that the releases before that one did not have', async () => {
    await makeOldDatabase();
    await inAgentDatabase(
      `ALTER TABLE project DROP COLUMN write_blocked_since, DROP COLUMN unenforced;
       ALTER TABLE branch DROP COLUMN closed; ALTER TABLE login DROP COLUMN end_from;
       DROP TABLE branch_usage, meter, shut_branch; UPDATE branch SET database = 'postgres'`,
    );
    await makeTables();
    expect(await contents()).toMatchObject({
      project: [{ write_blocked_since: null, unenforced: false }],
      branch: [{ closed: false }],
      login: [{ end_from: null }],
      branch_usage: [{ branch_id: BRANCH, seen: null, totals: ZERO_TOTALS }],
    });
  });

  test.runIf(IS_NIGHTLY)(
    'stays as it is while a session has a table locked, and is migrated afterwards',
    async () => {
      await makeOldDatabase();
      const holder = await servers.connect();
      await holder.query('BEGIN; LOCK TABLE shut_branch IN ACCESS SHARE MODE');
      await expect(makeTables()).rejects.toMatchObject({ code: '55P03' });
      expect(await versions()).toEqual([1]);
      expect(await holder.query('SELECT * FROM shut_branch')).toMatchObject({ rowCount: 1 });
      await holder.end();
      await makeTables();
      expect((await contents()).blocked_address).toHaveLength(1);
    },
  );
});

describe('a migration that does not complete', () => {
  const HALF = 'CREATE TABLE half (id integer);';
  const migrateTo = (...added: string[]) =>
    inDatabase(servers.settings, PLATFORM_ROLE, (session) => migrate(session, [...MIGRATIONS, ...added]));
  const half = () => servers.query("SELECT to_regclass('half') AS half");

  test('because of an error leaves nothing behind', async () => {
    await makeTables();
    await expect(migrateTo(`${HALF} SELECT 1 / 0`)).rejects.toMatchObject({ code: '22012' });
    expect([await versions(), await half()]).toEqual([ALL_VERSIONS, [{ half: null }]]);
    await migrateTo(HALF);
    expect([(await versions()).length, await half()]).toEqual([MIGRATIONS.length + 1, [{ half: 'half' }]]);
  });

  test('because its session ended leaves nothing behind', async () => {
    await makeTables();
    const interrupted = migrateTo(`${HALF} SELECT pg_sleep(60)`).catch((error: Error) => error);
    await eventually(async () => {
      const sleeping = await servers.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'",
      );
      expect(sleeping).toHaveLength(1);
    });
    expect(await interrupted).toBeInstanceOf(Error);
    expect([await versions(), await half()]).toEqual([ALL_VERSIONS, [{ half: null }]]);
    await migrateTo(HALF);
    expect(await half()).toEqual([{ half: 'half' }]);
  });

  test('of a newer release is not known to this one', async () => {
    await makeTables();
    await migrateTo(HALF);
    await expect(makeTables()).rejects.toThrow('install the newer release');
  });
});

describe('two agents that start at the same time', () => {
  test('make the tables once', async () => {
    await Promise.all([makeTables(), makeTables(), makeTables()]);
    expect(await versions()).toEqual(ALL_VERSIONS);
  });

  test('migrate an old database once', async () => {
    await makeOldDatabase();
    await Promise.all([makeTables(), makeTables(), makeTables()]);
    expect(await versions()).toEqual(ALL_VERSIONS);
    expect((await contents()).blocked_address).toHaveLength(1);
  });
});
