import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, expect, inject, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { Api, type Credentials, FROM_LOOPBACK } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { secretsIn } from '../support/sign-in/found-secrets.ts';
import { contentOfD1, ownerOf } from '../support/tenants.ts';

/** What a CI job does with a key that is limited to `pr-*`: create, migrate, test, delete. */

const CLONES = 3;
const { devDir, url } = inject('stack');

let owner: Api;
let project: string;
let key: string;
let machine: Api;

beforeAll(async () => {
  owner = await ownerOf('machines');
  ({ id: project } = await owner.project('Machines'));
  const wanted = {
    name: 'CI',
    role: 'operator',
    scopes: ['branchgate:write'],
    project_id: project,
    branch_pattern: 'pr-*',
    expires_in_days: 1,
  };
  ({
    body: { key },
  } = await owner.post<{ key: string }>('/api/v1/api-keys', wanted));
  machine = new Api(url, key);
  await machine.branch(project, 'pr-1');
});

const credentialsFrom = (branch: string, address: string) =>
  machine.get<Credentials>(`/api/v1/projects/${project}/branches/${branch}/credentials?role=owner`, {
    headers: { 'CF-Connecting-IP': address },
  });

test('migrations through the pooler are those of the owner, and survive clones of their source', async () => {
  const { database_url, direct_url } = await machine.credentials(project, 'pr-1', '?role=owner');
  expect(new URL(database_url).username).toMatch(/_owner$/);
  expect(new URL(database_url).port).not.toBe(new URL(direct_url).port);

  const direct = await connect(direct_url);
  const pooled = await connect(database_url);
  await pooled.query('create table step (id int primary key)');
  let steps = 0;
  let cloning = true;
  const migration = (async () => {
    for (; cloning; steps += 1) {
      await pooled.query('begin');
      await pooled.query(`create table made_${steps} (id int)`);
      await pooled.query('insert into step values ($1)', [steps]);
      await pooled.query('commit');
    }
  })();
  for (let n = 1; n <= CLONES; n += 1) {
    const from = steps;
    const { id: source_branch_id } = (
      await machine.get<{ matches: { id: string }[] }>(
        `/api/v1/projects/${project}/branches/lookup?name=pr-1`,
      )
    ).body.matches[0] ?? { id: '' };
    await machine.branch(project, `pr-1-clone-${n}`, { source_branch_id });
    await eventually(async () => expect(steps).toBeGreaterThan(from + 1));
  }
  cloning = false;
  await migration;
  await pooled.end();
  // The clones have ended the direct session, as they always do.
  await expect(direct.query('select 1')).rejects.toThrow();

  const [counted] = await query<{ steps: string; tables: string; owners: string }>(
    (await machine.credentials(project, 'pr-1')).database_url,
    `select (select count(*) from step) as steps, count(*) as tables, count(distinct tableowner) as owners
     from pg_tables where schemaname = 'public'`,
  );
  expect(counted).toEqual({ steps: String(steps), tables: String(steps + 1), owners: '1' });
  const clone = await machine.credentials(project, `pr-1-clone-${CLONES}`);
  expect(Number((await query(clone.database_url, 'select count(*) from step'))[0]?.count)).toBeGreaterThan(0);
});

test('an address without a rule gets the call that adds one', async () => {
  const address = '203.0.113.77';
  expect((await credentialsFrom('pr-1', '127.0.0.1')).body.warning).toBeUndefined();
  const { warning = '' } = (await credentialsFrom('pr-1', address)).body;
  expect(warning).toContain(address);
  const [, path = '', body = ''] = /POST (\S+) with the body (\{.*\})\./.exec(warning) ?? [];
  expect(await machine.post(path, JSON.parse(body), FROM_LOOPBACK)).toMatchObject({
    status: 201,
    body: { cidr: `${address}/32`, status: 'applied' },
  });
  expect((await credentialsFrom('pr-1', address)).body.warning).toBeUndefined();
});

test('branches are changed and deleted by name', async () => {
  const path = `/api/v1/projects/${project}/branches/pr-1-clone-1`;
  expect(await machine.patch(path, { lifespan: '1m' })).toMatchObject({
    status: 200,
    body: { branch_name: 'pr-1-clone-1', lifespan: '1m' },
  });
  expect((await machine.delete(path)).status).toBe(202);
  expect((await machine.delete(path)).status).toBe(404);
});

test('neither the key nor a prefix of it is in a log, and its secret is nowhere in D1', async () => {
  const [, id = ''] = key.split('_');
  const logs = devFolder(devDir).logs;
  for (const name of globSync('*.log', { cwd: logs })) {
    const text = readFileSync(join(logs, name), 'utf8');
    expect(text.includes(id), name).toBe(false);
  }
  const secrets = new Map([['key', key.slice(`bg_${id}_`.length)]]);
  for (const [table, rows] of Object.entries(contentOfD1())) {
    expect(secretsIn(JSON.stringify(rows), secrets), table).toEqual([]);
  }
});
