import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { LoginWatch } from '../../../agent/access/watch-logins.ts';
import { recover } from '../../../agent/maintenance/recover.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { makePassword, scramVerifier } from '../../../edge/crypto/scram.ts';
import { type BranchRole, groupName, loginName, queryLoginName } from '../../../shared/branch/login.ts';
import type { Params } from '../../../shared/protocol/operations.ts';
import type { TestHost } from '../../support/host/host.ts';
import { asClient, type Branch, connect, Project, removeProjects } from '../../support/host/host-project.ts';
import { Browser } from '../../support/host/host-rows.ts';
import { firstByDay } from '../../support/nightly.ts';

/** What a login can change of itself: its password and its settings. */

export function describeWatchedLogins(host: () => TestHost): void {
  let servers: TestHost;
  let project: Project;
  let main: Branch;
  let watch: LoginWatch;
  const logged: Record<string, unknown>[] = [];

  beforeAll(async () => {
    servers = host();
    project = new Project(servers.host);
    main = await project.create('db_self_prod', null);
    await run('owner', 'create table item (id int primary key); insert into item values (1)');
  });
  afterAll(() => removeProjects(servers));
  beforeEach(async () => {
    watch = new LoginWatch(servers.host, (event, fields) => logged.push({ event, ...fields }));
    // What the test before has left.
    await watch.poll();
    logged.length = 0;
    await servers.query('DELETE FROM restored_login');
  });

  const run = (role: BranchRole, sql: string) => asClient(servers.host, 'direct', main, role, sql);
  const canLogIn = (role: BranchRole, password = main.passwords[role]) =>
    connect(
      servers.host,
      'direct',
      { ...main, passwords: { ...main.passwords, [role]: password } },
      role,
    ).then(
      (client) => client.end().then(() => true),
      () => false,
    );
  const isAlive = (client: pg.Client) =>
    client.query('select 1').then(
      () => true,
      () => false,
    );
  const settingsOf = async (role: BranchRole) =>
    servers.query(
      `SELECT coalesce(datname, '') AS database, setconfig AS settings
     FROM pg_db_role_setting JOIN pg_roles ON pg_roles.oid = setrole LEFT JOIN pg_database ON pg_database.oid = setdatabase
     WHERE rolname = $1 ORDER BY 1`,
      [loginName(main.branch_id, role)],
    );

  const BREAKING = ["set local_preload_libraries = 'nope'", "set statement_timeout = '1ms'"];
  const SCOPES = ['', 'in database'];

  describe.each(firstByDay(1, ['read_write', 'read_only'] as const))(
    'a %s login that breaks itself',
    (role) => {
      test.each(BREAKING.flatMap((change) => SCOPES.map((scope) => [scope, change])))(
        'by alter role … %s %s is restored within a poll',
        async (scope, change) => {
          await run(role, `alter role current_user ${scope && `${scope} "${main.database}"`} ${change}`);
          if (change.includes('libraries')) expect(await canLogIn(role)).toBe(false);
          await watch.poll();
          expect(await settingsOf(role)).toEqual([]);
          expect(await run(role, 'show statement_timeout')).toEqual([{ statement_timeout: '0' }]);
          const settings = [change.split(' ')[1]];
          const login = loginName(main.branch_id, role);
          expect(logged).toEqual([{ event: 'login.restored', login, password: false, settings }]);
          // The tenant is notified.
          expect(
            await servers.query('SELECT login, password, settings FROM restored_login WHERE branch_id = $1', [
              main.branch_id,
            ]),
          ).toEqual([{ login, password: false, settings }]);
        },
      );

      test('takes neither rows nor queries from the API meanwhile', async () => {
        for (const change of BREAKING) await run(role, `alter role current_user ${change}`).catch(() => {});
        const browser = new Browser(servers.host, main);
        expect((await browser.page('item')).rows).toEqual([{ id: 1 }]);
        expect((await browser.query('select id from item')).rows).toEqual([[1]]);
      });
    },
  );

  test('a tenant that changes its logins in many branches does not push out the report of another one', async () => {
    await run('read_write', "alter role current_user set statement_timeout = '1ms'");
    await watch.poll();
    const flooding = randomUUID();
    const branches = Array.from({ length: 12 }, () => randomUUID());
    for (const id of branches) {
      const login = loginName(id, 'owner');
      await servers.query(
        'INSERT INTO branch (branch_id, project_id, job_id, database) VALUES ($1, $2, $1, $3)',
        [id, flooding, `db_${id}`],
      );
      await servers.query(
        `INSERT INTO restored_login (branch_id, login, password, settings)
         SELECT $1, $2, false, '{work_mem}' FROM generate_series(1, 10)`,
        [id, login],
      );
    }
    const { restored_logins: reported } = await runOperation(servers.host, 'inventory.digest', {});
    await servers.query('DELETE FROM branch WHERE project_id = $1', [flooding]);
    expect(reported).toHaveLength(100);
    expect(reported.filter(({ branch_id }) => branch_id === main.branch_id)).toMatchObject([
      { role: 'read_write', settings: ['statement_timeout'] },
    ]);
  });

  test.each(['sync', 'async'] as const)(
    'a login cannot change the durability %s of its project',
    async (durability) => {
      const isSync = durability === 'sync';
      const own = isSync ? ['synchronous_commit=on'] : null;
      const settings = async () => (await settingsOf('read_write'))[0]?.settings ?? null;
      await servers.query('UPDATE project SET durability = $1 WHERE project_id = $2', [
        durability,
        project.id,
      ]);
      await watch.poll();
      expect(await settings()).toEqual(own);
      const change = isSync ? 'reset all' : 'set synchronous_commit = on';
      await run('read_write', `alter role current_user ${change}`);
      await watch.poll();
      expect(await settings()).toEqual(own);
      expect(logged).toEqual([]);
    },
  );

  test.each([
    ['a rotation', () => rotate()],
    ['the next inventory', () => runOperation(servers.host, 'host.inventory', {})],
    ['the start of the agent', () => recover(servers.host)],
  ])('a broken login is restored by %s too', async (_, restore) => {
    await run('read_only', "alter role current_user set local_preload_libraries = 'nope'");
    await run('owner', `set role none; alter role current_user in database "${main.database}" reset role`);
    await restore();
    expect(await canLogIn('read_only')).toBe(true);
    expect(await run('owner', 'select current_user::text as name')).toEqual([
      { name: groupName(main.project_id, 'owner') },
    ]);
  });

  const apply = (access: Partial<Params<'access.apply'>['access']>) => {
    project.revision += 1;
    return runOperation(servers.host, 'access.apply', {
      project_id: project.id,
      access: { revision: project.revision, rules: [{ branch_id: null, cidr: '127.0.0.1/32' }], ...access },
    });
  };

  async function rotate(): Promise<void> {
    const password = makePassword();
    await apply({ verifiers: { [main.branch_id]: { read_only: await scramVerifier(password) } } });
    main.passwords.read_only = password;
  }

  test('the settings that are ours survive those that are not', async () => {
    await apply({ write_blocked: true });
    await run('read_only', "begin read write; alter role current_user set work_mem = '1GB'; commit");
    await run('owner', "set role none; alter role current_user set work_mem = '1GB'");
    await watch.poll();
    expect(await settingsOf('read_only')).toEqual([
      { database: '', settings: ['default_transaction_read_only=on'] },
    ]);
    const role = `role=${groupName(main.project_id, 'owner')}`;
    expect(await settingsOf('owner')).toEqual([{ database: main.database, settings: [role] }]);
    await apply({});
  });

  test('a password that a read-only login sets is replaced within a poll, and its sessions end', async () => {
    await run('read_only', "alter role current_user password 'mine'");
    expect(await canLogIn('read_only')).toBe(false);
    const { passwords } = main;
    const foreign = await connect(
      servers.host,
      'direct',
      { ...main, passwords: { ...passwords, read_only: 'mine' } },
      'read_only',
    );
    const other = await connect(servers.host, 'direct', main, 'owner');
    await watch.poll();
    expect(await canLogIn('read_only')).toBe(true);
    expect(await canLogIn('read_only', 'mine')).toBe(false);
    expect([await isAlive(foreign), await isAlive(other)]).toEqual([false, true]);
    await other.end();
  });

  test("a former owner's function sets the password of its login back for a poll only", async () => {
    const login = loginName(main.branch_id, 'read_write');
    await run('owner', `create schema trap; grant all on schema trap to public`);
    await run(
      'read_write',
      `create function trap.set_back() returns void language plpgsql security definer as
     $$ begin execute 'alter role "${login}" password ''former'''; end $$`,
    );
    // A user of another login calls it, for instance by a trigger.
    await run('read_only', 'select trap.set_back()');
    const former = await connect(
      servers.host,
      'direct',
      { ...main, passwords: { ...main.passwords, read_write: 'former' } },
      'read_write',
    );
    await watch.poll();
    expect(await isAlive(former)).toBe(false);
    expect([await canLogIn('read_write'), await canLogIn('read_write', 'former')]).toEqual([true, false]);
    expect(logged).toEqual([{ event: 'login.restored', login, password: true, settings: [] }]);
  });

  test('a branch of an earlier release gets its query login at the start, without a clone', async () => {
    const login = queryLoginName(main.branch_id);
    await servers.query(
      `REVOKE ALL ON DATABASE "${main.database}" FROM "${login}"; DROP ROLE "${login}"; DELETE FROM login WHERE login = '${login}'`,
    );
    await recover(servers.host);
    const browser = new Browser(servers.host, main);
    expect((await browser.query('select session_user')).rows).toEqual([[login]]);
  });

  test('a login that PostgreSQL refuses is reported with the reason, not as a defect', async () => {
    const browser = new Browser(servers.host, main);
    // One that is kept would not log in.
    await servers.host.rows.kept.close();
    for (const login of [queryLoginName(main.branch_id), loginName(main.branch_id, 'read_write')])
      await servers.query(`ALTER ROLE "${login}" SET session_preload_libraries = 'nope'`);
    const refused = { code: 'LOGIN_REFUSED', sqlstate: '58P01', message: expect.stringContaining('nope') };
    await expect(browser.query('select 1')).rejects.toMatchObject(refused);
    await expect(browser.page('item')).rejects.toMatchObject(refused);
    const difference = runOperation(servers.host, 'branch.diff', {
      project_id: project.id,
      branch_id: main.branch_id,
      database: main.database,
      against: { branch_id: main.branch_id, database: main.database },
      job_id: null,
      rows: true,
      schema: false,
      within: 10_000,
    });
    await expect(difference).rejects.toMatchObject(refused);
    await watch.poll();
    expect((await browser.query('select 1')).rows).toEqual([[1]]);
  });
}
