import { readFileSync } from 'node:fs';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { currentPostgresLog } from '../../../agent/logs/postgres-log.ts';
import { recover } from '../../../agent/maintenance/recover.ts';
import { BRANCH_ROLES, groupName, loginName } from '../../../shared/branch/login.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  connect,
  makeProject,
  type Project,
  removeProjects,
} from '../../support/host/host-project.ts';

export function describeBranchLimits(host: () => TestHost): void {
  let servers: TestHost;
  let project: Project;
  let main: Branch;
  let branch: Branch;

  beforeAll(async () => {
    ({ servers, project, main } = await makeProject(host(), 'db_bounded_prod', 'CREATE TABLE t (x int)'));
    branch = await project.create('db_bounded_prod_br_one', main.database);
  });
  afterAll(() => removeProjects(servers));

  /** What a session wrote. Other sessions, also of the agent with the same login, write to the same log. */
  const messagesOf = (pid: number): string[] =>
    readFileSync(currentPostgresLog(servers.settings) ?? '', 'utf8')
      .split('\n')
      .filter((line) => line.includes(`"pid":${pid},`) && line.endsWith('}'))
      .map((line) => JSON.parse(line).message);
  const pidOf = async (client: pg.Client) =>
    (await client.query<{ pid: number }>('SELECT pg_backend_pid() AS pid')).rows[0]?.pid ?? 0;

  /** The limits of the project's databases, and the transactions that set them. */
  const limits = () =>
    servers.query<{ limit: number; settings: string[] }>(
      `SELECT datname, datconnlimit AS limit, setconfig AS settings, pg_database.xmin, setting.xmin AS set_by
     FROM pg_database LEFT JOIN pg_db_role_setting AS setting ON setdatabase = pg_database.oid AND setrole = 0
     WHERE datname LIKE 'db\\_bounded%' ORDER BY 1`,
    );

  const PROTECTED = { limit: 60, settings: ['log_min_messages=fatal', 'temp_file_limit=1024MB'] };

  describe.each(BRANCH_ROLES)('the %s login', (role) => {
    const run = (sql: string) => asClient(servers.host, 'direct', branch, role, sql);

    test('writes nothing to the server log, while its attempts to connect are logged', async () => {
      const client = await connect(servers.host, 'direct', branch, role);
      const pid = await pidOf(client);
      const text = "repeat('x', 1000)";
      await client.query(
        `DO $$ BEGIN FOR i IN 1..1000 LOOP RAISE LOG '%', ${text}; RAISE WARNING '%', ${text}; END LOOP; END $$`,
      );
      await expect(client.query('SELECT 1 / 0')).rejects.toThrow('division');
      // The server's sessions write to the log through one pipe: what this one has written comes before the
      // next one.
      const next = await connect(servers.host, 'direct', branch, role);
      const nextPid = await pidOf(next);
      await eventually(async () => expect(messagesOf(nextPid)).not.toEqual([]));
      expect(messagesOf(pid)).not.toEqual([]);
      for (const message of messagesOf(pid)) expect(message).toMatch(/^connection \w+: /);
      await Promise.all([client.end(), next.end()]);
    });

    test.each([
      "SET log_min_messages = 'debug5'",
      'SET temp_file_limit = -1',
      "SELECT set_config('temp_file_limit', '-1', false)",
    ])('cannot run %s', async (sql) => {
      await expect(run(sql)).rejects.toThrow('permission denied');
    });

    test('cannot undo the limits for later sessions, nor avoid them by start-up options', async () => {
      const login = loginName(branch.branch_id, role);
      for (const setting of ["log_min_messages = 'info'", 'temp_file_limit = -1']) {
        await expect(run(`ALTER ROLE ${login} SET ${setting}`)).rejects.toThrow('permission denied');
        await expect(
          run(`ALTER ROLE ${login} IN DATABASE "${branch.database}" SET ${setting}`),
        ).rejects.toThrow('permission denied');
        await expect(run(`ALTER DATABASE "${branch.database}" SET ${setting}`)).rejects.toThrow(
          'must be owner',
        );
      }
      await expect(run(`ALTER DATABASE "${branch.database}" RESET ALL`)).rejects.toThrow('must be owner');
      await expect(run(`ALTER DATABASE "${branch.database}" CONNECTION LIMIT -1`)).rejects.toThrow(
        'must be owner',
      );
      await run(`ALTER ROLE ${login} IN DATABASE "${branch.database}" RESET temp_file_limit`).catch(() => {});
      expect(await run('SHOW temp_file_limit')).toEqual([{ temp_file_limit: '1GB' }]);
      expect(await run('SHOW log_min_messages')).toEqual([{ log_min_messages: 'fatal' }]);
    });

    test('cannot write messages to the log of changes', async () => {
      for (const message of ["'x'", "'\\x00'::bytea"])
        await expect(run(`SELECT pg_logical_emit_message(false, 'p', ${message})`)).rejects.toThrow(
          'permission denied',
        );
    });
  });

  test('temporary files beyond the limit end the statement', async () => {
    await servers.query(`ALTER DATABASE "${branch.database}" SET temp_file_limit = '1MB'`);
    const sort =
      "SELECT count(*) FROM (SELECT repeat('x', 100) || i FROM generate_series(1, 200000) i ORDER BY 1) s";
    await expect(asClient(servers.host, 'direct', branch, 'read_only', sort)).rejects.toThrow(
      'temporary file size exceeds',
    );
    expect(await recover(servers.host)).toEqual([]);
  });

  test('one branch takes a bounded number of connections; others and the agent still connect', async () => {
    const clients: pg.Client[] = [];
    const open = async () => {
      for (let n = 0; n <= 60; n += 1)
        clients.push(await connect(servers.host, 'direct', branch, 'read_only'));
    };
    await expect(open()).rejects.toThrow('too many connections for database');
    expect(clients.length).toBeGreaterThan(50);
    await asClient(servers.host, 'direct', main, 'read_only', 'SELECT 1');
    await servers.query('SELECT 1');
    await Promise.all(clients.map((client) => client.end()));
  });

  test('every login makes temporary tables', async () => {
    const sql = 'BEGIN; CREATE TEMP TABLE own (x int); INSERT INTO own VALUES (1); COMMIT';
    for (const role of BRANCH_ROLES)
      for (const port of ['direct', 'pooled'] as const) await asClient(servers.host, port, branch, role, sql);
  });

  test('grants that an earlier release did not make are made at the start of the agent, once', async () => {
    const group = groupName(project.id, 'owner');
    const login = loginName(branch.branch_id, 'read_only');
    const makeTable = () =>
      asClient(servers.host, 'direct', branch, 'owner', 'CREATE TEMP TABLE own (x int)');
    await servers.query(
      `REVOKE TEMPORARY ON DATABASE "${branch.database}" FROM ${group};
     REVOKE CONNECT ON DATABASE "${branch.database}" FROM ${login}`,
    );
    await expect(makeTable()).rejects.toThrow('permission denied');
    expect(await recover(servers.host)).toEqual([]);
    await makeTable();
    await asClient(servers.host, 'direct', branch, 'read_only', `SELECT 1; DROP OWNED BY ${login}`);
    await asClient(servers.host, 'direct', branch, 'read_only', 'SELECT 1');
    const after = await limits();
    expect(await recover(servers.host)).toEqual([]);
    expect(await limits(), 'nothing is written again').toEqual(after);
  });

  test('branches of an earlier release get the limits at the start of the agent, once', async () => {
    for (const { database } of [main, branch])
      await servers.query(
        `ALTER DATABASE "${database}" RESET ALL; ALTER DATABASE "${database}" CONNECTION LIMIT -1`,
      );
    expect(await limits()).toMatchObject([
      { limit: -1, settings: null },
      { limit: -1, settings: null },
    ]);
    expect(await recover(servers.host)).toEqual([]);
    const after = await limits();
    expect(after).toMatchObject([PROTECTED, PROTECTED]);
    expect(await recover(servers.host)).toEqual([]);
    expect(await limits(), 'nothing is written again').toEqual(after);
  });

  test('a clone that is not finalized stays closed', async () => {
    const building = project.plan('db_bounded_prod_br_two');
    await project.prepare(building);
    await project.clone(building, main.database);
    expect(await recover(servers.host)).toEqual([]);
    const [{ closed } = { closed: false }] = await servers.query<{ closed: boolean }>(
      "SELECT datconnlimit = 0 AS closed FROM pg_database WHERE datname LIKE 'bgjob%'",
    );
    expect(closed).toBe(true);
    await project.finalize(building);
    expect((await limits()).map(({ limit }) => limit)).toEqual([60, 60, 60]);
  });
}
