import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { readRuleFiles } from '../../../agent/access/rule-files.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { inSession } from '../../../agent/postgres/connect.ts';
import { rulesFolder } from '../../../agent/process/settings.ts';
import { BRANCH_ROLES, groupName, loginName, queryLoginName } from '../../../shared/branch/login.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  connect,
  type Port,
  Project,
  removeProjects,
} from '../../support/host/host-project.ts';
import { firstByDay } from '../../support/nightly.ts';

export function describeIsolation(host: () => TestHost): void {
  let servers: TestHost;
  /** A branch, one of another project, the branch's source, and its clone. */
  let branches: Branch[];

  beforeAll(async () => {
    servers = host();
    const ann = new Project(servers.host);
    const bob = new Project(servers.host);
    const main = await ann.create('db_ann_prod', null);
    const one = await ann.create('db_ann_prod_br_one', main.database);
    const oneTwo = await ann.create('db_ann_prod_br_one-two', one.database);
    const other = await bob.create('db_bob_prod', null);
    branches = [one, other, main, oneTwo];
  });
  afterAll(() => removeProjects(servers));

  const PORTS: Port[] = ['direct', 'pooled'];

  test('a login connects to its own branch’s database only, on both ports', async () => {
    const databases = [
      ...branches.map(({ database }) => database),
      'branchgate',
      'postgres',
      'template1',
      'pgbouncer',
    ];
    const wrong: string[] = [];
    for (const port of PORTS) {
      for (const branch of firstByDay(2, branches)) {
        for (const role of BRANCH_ROLES) {
          for (const database of databases) {
            const isInside = await connect(servers.host, port, branch, role, database).then(
              async (client) => {
                const { rows } = await client.query('SELECT current_database() AS at, session_user AS as');
                await client.end();
                return rows[0]?.at === database && rows[0]?.as === loginName(branch.branch_id, role);
              },
              () => false,
            );
            if (isInside !== (database === branch.database))
              wrong.push(`${role} of ${branch.database} to ${database}, ${port}`);
          }
        }
      }
    }
    expect(wrong).toEqual([]);
  });

  test('the query login has no password, and enters its own branch’s database over the socket only', async () => {
    const { settings } = servers.host;
    const wrong: string[] = [];
    const enters = (user: string, database: string, over: object) =>
      inSession({ user, database, ...over }, () => Promise.resolve(true)).catch(() => false);
    const socket = { host: settings.POSTGRES_SOCKET_DIR, port: settings.POSTGRES_PORT };
    for (const branch of firstByDay(2, branches)) {
      const user = queryLoginName(branch.branch_id);
      for (const { database } of branches)
        if ((await enters(user, database, socket)) !== (database === branch.database))
          wrong.push(`${branch.database} to ${database}`);
      const network = { host: '127.0.0.1', ssl: { rejectUnauthorized: false } };
      for (const port of [settings.POSTGRES_PORT, settings.POOLER_PORT])
        for (const password of ['', ...Object.values(branch.passwords)])
          if (await enters(user, branch.database, { ...network, port, password }))
            wrong.push(`${branch.database} over the network`);
    }
    expect(wrong).toEqual([]);
    expect(
      await servers.query(
        `SELECT DISTINCT rolpassword, rolconnlimit > 0 AS is_limited, rolsuper OR rolcreaterole OR rolcreatedb AS is_more,
              EXISTS (SELECT FROM pg_auth_members JOIN pg_roles ON pg_roles.oid = roleid
                      WHERE member = pg_authid.oid AND rolname !~ '^g_[0-9a-f]{32}_ro$') AS is_member_of_more
       FROM pg_authid WHERE rolname ~ '_query$'`,
      ),
    ).toEqual([{ rolpassword: null, is_limited: true, is_more: false, is_member_of_more: false }]);
    const { poolerUsers } = await readRuleFiles(rulesFolder(settings));
    expect(poolerUsers).toContain('_ro"');
    expect(poolerUsers).not.toContain('_query');
  });

  test('the query login is closed, opened and dropped with its branch', async () => {
    const project = new Project(servers.host);
    const main = await project.create('db_query_prod', null);
    const login = queryLoginName(main.branch_id);
    const mayLogIn = () => servers.query('SELECT rolcanlogin FROM pg_roles WHERE rolname = $1', [login]);
    const apply = (closed: string[]) => {
      project.revision += 1;
      const access = { revision: project.revision, rules: [], write_blocked: false, closed, verifiers: {} };
      return runOperation(servers.host, 'access.apply', { project_id: project.id, access });
    };
    await apply([main.branch_id]);
    expect(await mayLogIn()).toEqual([{ rolcanlogin: false }]);
    await apply([]);
    expect(await mayLogIn()).toEqual([{ rolcanlogin: true }]);
    await project.drop(main);
    expect(await mayLogIn()).toEqual([]);
  });

  describe('the owner of a branch', () => {
    const asOwner = (sql: string, branch = branches[0]) => {
      if (!branch) throw new Error('no branch');
      return asClient(servers.host, 'direct', branch, 'owner', sql);
    };

    test('makes tables, schemas and trusted extensions, which a clone’s logins may use', async () => {
      await asOwner(
        `CREATE SCHEMA shop; CREATE TABLE shop.item (id serial PRIMARY KEY);
       CREATE TABLE public.note (id int); CREATE EXTENSION hstore; CREATE EXTENSION pgcrypto`,
      );
      const [one] = branches;
      if (!one) throw new Error('no branch');
      const project = new Project(servers.host, undefined, one.project_id);
      const clone = await project.create('db_ann_prod_br_heir', one.database);
      await asClient(servers.host, 'pooled', clone, 'read_write', 'INSERT INTO shop.item DEFAULT VALUES');
      expect(await asClient(servers.host, 'pooled', clone, 'read_only', 'SELECT id FROM shop.item')).toEqual([
        { id: 1 },
      ]);
      expect(await asClient(servers.host, 'direct', one, 'read_only', 'SELECT id FROM shop.item')).toEqual(
        [],
      );
      await asClient(servers.host, 'direct', clone, 'owner', 'DROP SCHEMA shop CASCADE');
      await project.drop(clone);
    });

    test('owns its objects through its group, so that no login prevents the drop of a clone', async () => {
      const [one] = branches;
      expect(await asOwner('SELECT current_user::text AS acts_as')).toEqual([
        { acts_as: groupName(one?.project_id ?? '', 'owner') },
      ]);
      await expect(asOwner('SET ROLE NONE; CREATE TABLE public.mine (id int)')).rejects.toThrow(
        'permission denied',
      );
    });

    test.each([
      ['becomes the platform', 'SET ROLE branchgate'],
      [
        'becomes the other project’s group',
        () => `SET ROLE ${groupName(branches[1]?.project_id ?? '', 'owner')}`,
      ],
      [
        'becomes another branch’s login',
        () => `SET ROLE ${loginName(branches[2]?.branch_id ?? '', 'read_write')}`,
      ],
      ['makes roles', 'CREATE ROLE friend'],
      ['raises its rights', () => `ALTER ROLE ${loginName(branches[0]?.branch_id ?? '', 'owner')} SUPERUSER`],
      ['makes databases', 'CREATE DATABASE db_mine'],
      ['drops its database', 'DROP DATABASE db_ann_prod'],
      ['renames its database', 'ALTER DATABASE db_ann_prod_br_one RENAME TO db_mine'],
      ['comments its database', "COMMENT ON DATABASE db_ann_prod_br_one IS '{}'"],
      ['makes untrusted extensions', 'CREATE EXTENSION file_fdw'],
      ['reads files', "SELECT pg_read_file('PG_VERSION')"],
      ['runs programs', "COPY (SELECT 1) TO PROGRAM 'true'"],
      ['reads verifiers', 'SELECT rolpassword FROM pg_authid'],
      ['reloads the server', 'SELECT pg_reload_conf()'],
      ['sees what the rules are', 'SELECT * FROM pg_hba_file_rules'],
    ])('never %s', async (_, sql) => {
      await expect(asOwner(typeof sql === 'string' ? sql : sql())).rejects.toMatchObject({
        code: expect.stringMatching(/^(42501|42704|2BP01|0LP01)$/),
      });
    });
  });

  describe('sessions', () => {
    interface Login {
      name: string;
      client: pg.Client;
      /** Of a second session of the login. */
      pid: number;
    }
    const pidOf = async (client: pg.Client) =>
      (await client.query<{ pid: number }>('SELECT pg_backend_pid() AS pid')).rows[0]?.pid ?? 0;

    test('each login sees, cancels and ends its own, and nobody else’s: all pairs of logins', async () => {
      const clients: pg.Client[] = [];
      const logins: Login[] = [];
      for (const branch of firstByDay(3, branches)) {
        for (const role of BRANCH_ROLES) {
          const client = await connect(servers.host, 'direct', branch, role);
          const victim = await connect(servers.host, 'direct', branch, role);
          clients.push(client, victim);
          await victim.query(`SELECT 'seen by ${loginName(branch.branch_id, role)}'`);
          logins.push({ name: loginName(branch.branch_id, role), client, pid: await pidOf(victim) });
        }
      }
      const pids = logins.map(({ pid }) => pid);
      for (const { name, client, pid: own } of logins) {
        const { rows } = await client.query(
          "SELECT usename FROM pg_stat_activity WHERE pid = ANY ($1) AND query <> '<insufficient privilege>'",
          [pids],
        );
        expect(rows).toEqual([{ usename: name }]);
        for (const [index, pid] of pids.entries()) {
          const may = pid === own;
          for (const signal of ['pg_cancel_backend', 'pg_terminate_backend']) {
            if (may && signal === 'pg_terminate_backend') continue;
            const outcome = await client.query(`SELECT ${signal}($1) AS done`, [pid]).then(
              ({ rows }) => rows[0]?.done,
              ({ code }) => code,
            );
            expect([name, logins[index]?.name, outcome]).toEqual([
              name,
              logins[index]?.name,
              may ? true : '42501',
            ]);
          }
        }
      }
      for (const { client, pid } of logins)
        expect((await client.query('SELECT pg_terminate_backend($1, 5000) AS ended', [pid])).rows).toEqual([
          { ended: true },
        ]);
      await Promise.all(clients.map((client) => client.end().catch(() => {})));
    });

    test('an owner cancels its own statement through the pooler, and what a name hides changes nothing', async () => {
      const [branch, other] = branches;
      if (!branch || !other) throw new Error('no branch');
      const running = await connect(servers.host, 'pooled', branch, 'owner');
      const owner = await connect(servers.host, 'direct', branch, 'owner');
      const pid = await pidOf(running);
      const cancelled = expect(running.query('SELECT pg_sleep(60)')).rejects.toMatchObject({ code: '57014' });
      await eventually(async () => {
        const { rows } = await owner.query('SELECT query FROM pg_stat_activity WHERE pid = $1', [pid]);
        expect(rows).toEqual([{ query: 'SELECT pg_sleep(60)' }]);
      });
      await owner.query('SELECT pg_cancel_backend($1)', [pid]);
      await cancelled;

      const foreign = await connect(servers.host, 'direct', other, 'owner');
      const target = await pidOf(foreign);
      await owner.query(`
      CREATE FUNCTION public.branchgate_is_own(integer) RETURNS boolean LANGUAGE sql AS 'SELECT true';
      CREATE FUNCTION public.pg_stat_clear_snapshot() RETURNS void LANGUAGE sql AS 'SELECT';
      CREATE FUNCTION public.pg_stat_get_activity(integer) RETURNS TABLE (usesysid oid) LANGUAGE sql
        AS 'SELECT oid FROM pg_catalog.pg_roles WHERE rolname = SESSION_USER';
      CREATE VIEW public.pg_roles AS SELECT * FROM pg_catalog.pg_roles;
      CREATE FUNCTION public.eq(oid, oid) RETURNS boolean LANGUAGE sql AS 'SELECT true';
      CREATE OPERATOR public.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = public.eq);
      SET search_path = public, pg_temp, pg_catalog`);
      for (const attack of [
        'SELECT pg_catalog.pg_terminate_backend($1)',
        'SELECT pg_catalog.pg_cancel_backend($1)',
        'SELECT pg_catalog.pg_terminate_backend_of_role($1, 0)',
      ])
        await expect(owner.query(attack, [target])).rejects.toMatchObject({ code: '42501' });
      for (const attack of ['branchgate_cancel_own($1)', 'branchgate_terminate_own($1, 0)'])
        expect((await owner.query(`SELECT pg_catalog.${attack} AS done`, [target])).rows).toEqual([
          { done: false },
        ]);
      // A transaction reads the list of sessions once, but not for a signal: this number may have a new owner.
      const gone = await connect(servers.host, 'direct', branch, 'owner');
      const freed = await pidOf(gone);
      const isOwn = async () =>
        (await owner.query('SELECT pg_catalog.branchgate_is_own($1) AS own', [freed])).rows[0]?.own;
      await owner.query('BEGIN; SELECT count(*) FROM pg_catalog.pg_stat_activity');
      expect(await isOwn()).toBe(true);
      await owner.query('SELECT count(*) FROM pg_catalog.pg_stat_activity');
      await gone.end();
      await eventually(async () => expect(await isOwn()).toBe(false));
      await Promise.all([running, owner, foreign].map((client) => client.end()));
    });
  });

  test('a restricted project is closed on both ports, also to the right password', async () => {
    const project = new Project(servers.host, []);
    const main = await project.create('db_closed_prod', null);
    for (const port of PORTS) {
      for (const role of BRANCH_ROLES)
        await expect(connect(servers.host, port, main, role)).rejects.toThrow();
    }
    await project.drop(main);
  });

  test('a session without TLS is refused on both ports', async () => {
    const [branch] = branches;
    if (!branch) throw new Error('no branch');
    for (const port of PORTS)
      await expect(connect(servers.host, port, branch, 'owner', branch.database, false)).rejects.toThrow();
  });
}
