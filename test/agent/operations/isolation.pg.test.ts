import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { BRANCH_ROLES, groupName, loginName } from '../../../shared/branch/login.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { asClient, type Branch, connect, type Port, Project } from '../../support/host/host-project.ts';

let servers: TestHost;
let branches: Branch[];

beforeAll(async () => {
  servers = await startHost();
  branches = [];
  for (const key of ['ann', 'bob']) {
    const project = new Project(servers.host);
    branches.push(await project.create(`db_${key}_prod`, null));
    branches.push(await project.create(`db_${key}_prod_br_one`, `db_${key}_prod`));
    branches.push(await project.create(`db_${key}_prod_br_one-two`, `db_${key}_prod_br_one`));
  }
});
afterAll(() => servers.stop());

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
    for (const branch of branches) {
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

describe('the owner of a branch', () => {
  const asOwner = (sql: string, branch = branches[1]) => {
    if (!branch) throw new Error('no branch');
    return asClient(servers.host, 'direct', branch, 'owner', sql);
  };

  test('makes tables, schemas and trusted extensions, which a clone’s logins may use', async () => {
    await asOwner(
      `CREATE SCHEMA shop; CREATE TABLE shop.item (id serial PRIMARY KEY);
       CREATE TABLE public.note (id int); CREATE EXTENSION hstore; CREATE EXTENSION pgcrypto`,
    );
    const [, one] = branches;
    if (!one) throw new Error('no branch');
    const project = new Project(servers.host, undefined, one.project_id);
    const clone = await project.create('db_ann_prod_br_heir', one.database);
    await asClient(servers.host, 'pooled', clone, 'read_write', 'INSERT INTO shop.item DEFAULT VALUES');
    expect(await asClient(servers.host, 'pooled', clone, 'read_only', 'SELECT id FROM shop.item')).toEqual([
      { id: 1 },
    ]);
    expect(await asClient(servers.host, 'direct', one, 'read_only', 'SELECT id FROM shop.item')).toEqual([]);
    await asClient(servers.host, 'direct', clone, 'owner', 'DROP SCHEMA shop CASCADE');
    await project.drop(clone);
  });

  test('owns its objects through its group, so that no login prevents the drop of a clone', async () => {
    const [, one] = branches;
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
      () => `SET ROLE ${groupName(branches[3]?.project_id ?? '', 'owner')}`,
    ],
    [
      'becomes another branch’s login',
      () => `SET ROLE ${loginName(branches[0]?.branch_id ?? '', 'read_write')}`,
    ],
    ['makes roles', 'CREATE ROLE friend'],
    ['raises its rights', () => `ALTER ROLE ${loginName(branches[1]?.branch_id ?? '', 'owner')} SUPERUSER`],
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

test('a restricted project is closed on both ports, also to the right password', async () => {
  const project = new Project(servers.host, []);
  const main = await project.create('db_closed_prod', null);
  for (const port of PORTS) {
    for (const role of BRANCH_ROLES) await expect(connect(servers.host, port, main, role)).rejects.toThrow();
  }
  await project.drop(main);
});

test('a session without TLS is refused on both ports', async () => {
  const [main] = branches;
  if (!main) throw new Error('no branch');
  for (const port of PORTS)
    await expect(connect(servers.host, port, main, 'owner', main.database, false)).rejects.toThrow();
});
