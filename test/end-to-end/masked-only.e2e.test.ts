import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { beforeAll, describe, expect, inject, test } from 'vitest';
import { TOOLS } from '../../mcp/tools.ts';
import { Api, type ApiResponse } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { firstByDay, IS_NIGHTLY } from '../support/nightly.ts';
import {
  callOperation,
  createResources,
  type Ids,
  type Operation,
  USER_OPERATIONS,
} from '../support/operations.ts';
import { dropBranch } from '../support/records/jobs.ts';
import { readD1, tokenOf } from '../support/tenants.ts';

/** What the rows of `createResources` hold in `main`. */
const CANARY = 'Seven';
const TENANT = 'veiled';
const { url } = inject('stack');

const MAKER = { tenant: TENANT, email: 'maker@veiled.example', role: 'operator' };
/** They would end what the others are about. */
const NOT_TRIED = ['deleteProject'];
/** Instead of the examples, which show nothing of these tables. */
const BODIES: Record<string, Record<string, unknown>> = {
  runQuery: { sql: 'select title from book' },
  tryStatements: { sql: 'select title from book' },
  updateRow: { schema: 'public', primary_key: ['id'], id: [7], column: 'id', value: '7' },
  createBranch: { branch_name: 'wanted', include: ['credentials'] },
  createBranches: { names: ['wanted-1'], include: ['credentials'] },
};

let owner: Api;

/** A project whose members get masked data only, with a full branch that differs from `main`. */
async function newProject(): Promise<Ids> {
  const ids = await createResources(new Api(url, await tokenOf(MAKER)), owner);
  const { project_id = '', branch_id = '' } = ids;
  const path = `/api/v1/projects/${project_id}`;
  const { direct_url } = await owner.credentials(project_id, branch_id);
  await query(direct_url, "update book set title = 'Other' where id = 7");
  const policy = { rules: [{ table: 'book', column: 'title', with: 'hash' }], unlisted: 'keep' };
  expect((await owner.call('PUT', `${path}/masking`, { body: policy })).status).toBe(200);
  expect((await owner.call('PATCH', path, { body: { masked_only: true } })).body).toMatchObject({
    masked_only: true,
  });
  return ids;
}

const keyOf = async (project_id: string, more: Record<string, unknown> = {}) => {
  const wanted = { name: 'ci', role: 'operator', scopes: ['branchgate:write'], expires_in_days: 1 };
  const { body } = await owner.post<{ key: string }>('/api/v1/api-keys', { ...wanted, project_id, ...more });
  return new Api(url, body.key);
};

/** Whether the canary is in the response, or where its connection URLs lead to. */
async function givesCanary(text: string): Promise<boolean> {
  if (text.includes(CANARY)) return true;
  for (const [found] of text.matchAll(/postgres(?:ql)?:\/\/[^"\\\s]+/g)) {
    const rows = await query<{ title: string }>(found, 'select title from book').catch(() => []);
    if (rows.some(({ title }) => title === CANARY)) return true;
  }
  return false;
}

/** Every operation, or these, on each of these branches, with what it gives. */
async function tryAll(api: Api, ids: Ids, role: string, only?: string[]): Promise<string[]> {
  const giving: string[] = [];
  const tried = USER_OPERATIONS.filter(
    ({ id, reaches }) => reaches[role] && !NOT_TRIED.includes(id) && (only?.includes(id) ?? true),
  );
  // What changes rows comes last, so that the others still find the canary.
  const isLast = ({ id, method, action }: Operation) =>
    id === 'resetBranch' || id === 'undoBranch' || method === 'DELETE' || action === 'rows.change';
  const inOrder = tried.toSorted((one, two) => Number(isLast(one)) - Number(isLast(two)));
  const call = async (name: string, operation: Operation, branch_ref: string) => {
    const body = BODIES[operation.id] ?? operation.body;
    const response: ApiResponse = await callOperation(api, { ...operation, body }, { ...ids, branch_ref });
    if (await givesCanary(JSON.stringify(response.body ?? ''))) giving.push(name);
  };
  for (const operation of inOrder) {
    const isOfBranch = operation.path.includes('{branch_ref}');
    for (const branch of isOfBranch ? ['main', ids.branch_id ?? ''] : [''])
      await call(`${operation.id} ${branch === 'main' ? 'main' : 'branch'}`, operation, branch);
  }
  return giving;
}

/** Branches and snapshots of the project with values of `main`, by those who made them. */
const unmasked = ({ project_id = '' }: Ids) =>
  readD1<{ id: string }>(
    `select id from project_branches where project_id = ? and status <> 'deleted' and (data = 'full' or keep_tables <> '[]')
     union all select id from snapshots where project_id = ?1 and data = 'full' and kind not in ('deleted', 'safety')`,
    project_id,
  ).map(({ id }) => id);

beforeAll(async () => {
  owner = new Api(url, await tokenOf({ tenant: TENANT, role: 'owner' }));
});

let shared: Promise<Ids> | undefined;
/** For the tests that leave the rows of `main` as they are. */
const sharedProject = (): Promise<Ids> => {
  shared ??= newProject();
  return shared;
};

test('of an owner, the operations that show data give the canary', async () => {
  const expected = [
    'listRows main',
    'runQuery main',
    'tryStatements main',
    'getCredentials main',
    'listChangedRows branch',
    'createBranch branch',
  ];
  const operations = expected.flatMap((name) => name.split(' ')[0] ?? []);
  const giving = IS_NIGHTLY
    ? await tryAll(owner, await newProject(), 'owner')
    : await tryAll(owner, await sharedProject(), 'owner', operations);
  for (const name of expected) expect(giving).toContain(name);
});

describe.each(
  firstByDay(1, [
    ['a developer, in their own project', 'operator'],
    ['an API key of an admin', 'admin'],
    ['a viewer', 'viewer'],
    ['an API key', 'operator'],
  ] as const),
)('%s', (who, role) => {
  test('gets the canary by no operation', async () => {
    const ids = await newProject();
    const { project_id = '' } = ids;
    const viewer = { tenant: TENANT, role, ...(role === 'operator' && MAKER) };
    const api = who.includes('key') ? await keyOf(project_id, { role }) : new Api(url, await tokenOf(viewer));
    if (role === 'viewer') {
      const { body } = await api.get<{ id: string }>('/api/v1/me');
      await owner.call('PUT', `/api/v1/projects/${project_id}/members/${body.id}`, {
        body: { role: 'viewer' },
      });
      expect((await api.get(`/api/v1/projects/${project_id}`)).status).toBe(200);
    }
    const before = unmasked(ids);
    expect(before).toHaveLength(3);
    expect(await tryAll(api, ids, role)).toEqual([]);
    expect(unmasked(ids).filter((id) => !before.includes(id))).toEqual([]);
  });
});

test('no other source of a branch gives the canary to a developer', async () => {
  const ids = await sharedProject();
  const path = `/api/v1/projects/${ids.project_id}`;
  const developer = new Api(url, await tokenOf(MAKER));
  await owner.post(`${path}/branches/main/snapshots`, {});
  const refused = async (request: string, body: object) => {
    const response = await developer.post<{ error: string }>(`${path}/${request}`, body);
    expect([request, response.status, response.body.error]).toEqual([request, 403, 'FORBIDDEN']);
  };
  await refused('branches', { branch_name: 'other', from: 'latest_snapshot' });
  await refused('branches', { branch_name: 'other', snapshot_id: ids.snapshot_id });
  await refused('branches', { branch_name: 'other', source_branch_id: ids.branch_id });
  await refused('branches', { branch_name: 'other', data: 'none', keep_tables: ['book'] });
  await refused('branches', { branch_name: 'made', on_exists: 'reset' });
  await refused(`branches/${ids.branch_id}/reset`, { to: ids.snapshot_id });
  await refused(`branches/${ids.deleted_branch_id}/restore`, {});
  const settings = { masked_only: false };
  expect((await developer.call('PATCH', path, { body: settings })).status).toBe(403);

  const masked = await developer.branch(ids.project_id ?? '', 'masked', { data: 'masked' });
  const { direct_url } = await developer.credentials(ids.project_id ?? '', masked.id);
  const titles = await query<{ title: string }>(direct_url, 'select title from book');
  expect(titles).toHaveLength(2);
  expect(JSON.stringify(titles)).not.toContain(CANARY);
  // The developer has its URLs.
  const reset = await owner.post(`${path}/branches/masked/reset`, { to: ids.snapshot_id });
  expect(reset).toMatchObject({ status: 403, body: { error: 'FORBIDDEN' } });
});

test('SQL over HTTP with a token gives the canary to an owner only', async () => {
  const { project_id = '' } = await sharedProject();
  const { database_url } = await owner.credentials(project_id, 'main', '?role=read_only');
  const read = async (token: string) => {
    const response = await fetch(`${url}/sql`, {
      method: 'POST',
      headers: {
        'Neon-Connection-String': database_url.replace(/:[^:@]+@/, '@'),
        Authorization: `Bearer ${token}`,
      },
      body: JSON.stringify({ query: 'select title from book', params: [] }),
    });
    return response.text();
  };
  expect(await read(await tokenOf({ tenant: TENANT, role: 'owner' }))).toContain(CANARY);
  const refused = await read(await tokenOf(MAKER));
  expect(refused).not.toContain(CANARY);
  expect(JSON.parse(refused)).toMatchObject({ code: '42501' });
});

test('a key gets the canary with the permission, and turns nothing off without it', async () => {
  const ids = await sharedProject();
  const { project_id = '' } = ids;
  const path = `/api/v1/projects/${project_id}`;
  const permitted = await keyOf(project_id, { permissions: ['data.full'] });
  const rows = (api: Api) => api.get(`${path}/branches/main/tables/book/rows`);
  expect(JSON.stringify((await rows(permitted)).body)).toContain(CANARY);
  const admin = await keyOf(project_id, { role: 'admin' });
  expect((await rows(admin)).status).toBe(403);
  expect((await admin.call('PATCH', path, { body: { masked_only: false } })).status).toBe(403);
  expect((await admin.call('PUT', `${path}/masking`, { body: { rules: [] } })).status).toBe(403);
});

describe.runIf(IS_NIGHTLY)('passwords that members have already', () => {
  const isOpen = (url_: string) =>
    query(url_, 'select 1').then(
      () => true,
      () => false,
    );

  test('stay valid with a warning, or are replaced, those of main only if it is wanted', async () => {
    const developer = new Api(url, await tokenOf(MAKER));
    const { id: project_id } = await developer.project('Passwords');
    const path = `/api/v1/projects/${project_id}`;
    await developer.allow(project_id);
    const { id: branch_id } = await developer.branch(project_id, 'made');
    const { id: undone } = await developer.branch(project_id, 'undone');
    await dropBranch(developer, project_id, undone);
    const change = (body: object) => owner.call<Record<string, unknown>>('PATCH', path, { body });
    const urlsOf = async (api: Api, branch: string) => {
      const { direct_url, database_url } = await api.credentials(project_id, branch);
      return [direct_url, database_url];
    };
    const main = await urlsOf(developer, 'main');
    const branch = await urlsOf(developer, branch_id);
    const open = async () => ({
      main: await Promise.all(main.map(isOpen)),
      branch: await Promise.all(branch.map(isOpen)),
    });
    const yes = [true, true];
    const no = [false, false];
    expect(await open()).toEqual({ main: yes, branch: yes });

    expect(await change({ rotate_credentials: 'all' })).toMatchObject({ status: 422 });
    const kept = await change({ masked_only: true });
    expect(kept.body).toMatchObject({
      masked_only: true,
      warning: expect.stringContaining('The passwords of main and 2 other branches were not replaced'),
    });
    expect(kept.body).not.toHaveProperty('credentials_rotated');
    expect(await open()).toEqual({ main: yes, branch: yes });

    // The branch, and a deleted one that can be restored with its passwords.
    const others = await change({ masked_only: true, rotate_credentials: 'all_but_main' });
    expect(others.body).toMatchObject({
      credentials_rotated: 2,
      warning: expect.stringContaining('The passwords of main were not replaced'),
    });
    expect(await open()).toEqual({ main: yes, branch: no });
    expect(await Promise.all((await urlsOf(owner, branch_id)).map(isOpen))).toEqual(yes);

    const session = await connect(main[0] ?? '');
    const ended = new Promise((resolve) => session.once('end', resolve));
    session.on('error', () => {});
    const all = await change({ masked_only: true, rotate_credentials: 'all' });
    expect(all.body).toMatchObject({ credentials_rotated: 3 });
    expect(all.body).not.toHaveProperty('warning');
    await ended;
    expect(await open()).toEqual({ main: no, branch: no });
    expect(await Promise.all((await urlsOf(owner, 'main')).map(isOpen))).toEqual(yes);
    const old = readD1<{ branch_id: string }>(
      'select branch_id from branch_credentials join project_branches on id = branch_id where project_id = ? and revision = 0',
      project_id,
    );
    expect(old).toEqual([]);
    const rotated = await owner.get<{ audit_events: { name: string }[] }>(
      `/api/v1/audit-events?project_id=${project_id}&limit=100`,
    );
    const { audit_events: events } = rotated.body;
    expect(events.filter(({ name }) => name === 'branch.credentials.rotated')).toHaveLength(5);

    // Both rotations of the project count as one of the branch, and the second as one of main (specification 8).
    const rotate = async (name: string) =>
      (await owner.post(`${path}/branches/${name}/credentials/rotate`, {})).status;
    for (let n = 3; n <= 5; n++) expect(await rotate('made')).toBe(200);
    expect(await rotate('made')).toBe(429);
    const again = await urlsOf(owner, 'main');
    expect(await change({ masked_only: true, rotate_credentials: 'all' })).toMatchObject({
      status: 429,
      body: { error: 'RATE_LIMITED', retry_after: expect.any(Number) },
    });
    expect(await Promise.all(again.map(isOpen))).toEqual(yes);
    expect(await rotate('main')).toBe(200);
  });
});

test('an agent gets the canary by no tool', async () => {
  const ids = await sharedProject();
  const { project_id = '', branch_id = '' } = ids;
  const key = await owner.post<{ key: string }>('/api/v1/api-keys', {
    name: 'agent',
    role: 'operator',
    scopes: ['branchgate:write'],
    expires_in_days: 1,
    project_id,
  });
  const transport = new StreamableHTTPClientTransport(new URL(`${url}/mcp`), {
    requestInit: { headers: { authorization: `Bearer ${key.body.key}` } },
  });
  const client = new Client({ name: 'test', version: '1' });
  await client.connect(transport);
  try {
    const { tools } = await client.listTools();
    expect(tools.length).toBeGreaterThan(5);
    expect(tools.every(({ name }) => TOOLS.some((tool) => tool.name === name))).toBe(true);
    const before = unmasked(ids);
    for (const { name, inputSchema } of tools)
      for (const branch of ['main', branch_id]) {
        const possible: Record<string, unknown> = {
          project_id,
          branch,
          from: branch,
          branch_name: `agent-${branch.slice(0, 4)}`,
          against: 'main',
          table: 'book',
          sql: 'select title from book',
          statements: ['select title from book'],
        };
        const known = Object.keys(inputSchema.properties ?? {});
        const input = Object.fromEntries(Object.entries(possible).filter(([field]) => known.includes(field)));
        const result = await client.callTool({ name, arguments: input });
        expect([name, branch, await givesCanary(JSON.stringify(result))]).toEqual([name, branch, false]);
      }
    expect(unmasked(ids).filter((id) => !before.includes(id))).toEqual([]);
  } finally {
    await client.close();
  }
});

describe.runIf(IS_NIGHTLY)('guesses that a developer writes', () => {
  const CUSTOMERS = [1, 2, 3].map((n) => ({
    email: `customer${n}@real.example`,
    phone: `+49 30 5550${n}17`,
    number: `${4_711_000_000 + n * 131}`,
  }));
  const COLUMNS = ['email', 'phone', 'number'] as const;
  const policy = {
    rules: [
      { table: 'customer', column: 'email', with: 'email' },
      { table: 'customer', column: 'phone', with: 'phone' },
      { table: 'customer', column: 'number', with: 'hash' },
    ],
    unlisted: 'keep',
  };
  const TABLE = 'create table customer (id int primary key, email text, phone text, number bigint)';
  const rowsOf = (from: number) =>
    `insert into customer values ${CUSTOMERS.map(({ email, phone, number }, n) => `(${from + n}, '${email}', '${phone}', ${number})`).join(', ')}`;
  const FIRST_GUESS = 1_000;

  let developer: Api;
  let project_id: string;
  let path: string;
  const urlOf = async (branch: string) => (await developer.credentials(project_id, branch)).direct_url;
  const maskedOf = async (branch: string, from = 0) => {
    const rows = await query<Record<(typeof COLUMNS)[number], string>>(
      await urlOf(branch),
      `select email, phone, number::text from customer where id between ${from} and ${from + 999} order by id`,
    );
    expect(rows).toHaveLength(CUSTOMERS.length);
    return rows.flatMap((row) => COLUMNS.map((column) => row[column]));
  };
  /** The developer masks a snapshot of the branch, and makes a branch of it. */
  const throughSnapshot = async (of: string, name: string) => {
    const taken = await developer.post<{ id: string }>(`${path}/branches/${of}/snapshots`, {
      data: 'masked',
    });
    expect(taken.status).toBe(201);
    await developer.branch(project_id, name, { snapshot_id: taken.body.id });
    return maskedOf(name, FIRST_GUESS);
  };

  beforeAll(async () => {
    developer = new Api(url, await tokenOf(MAKER));
    ({ id: project_id } = await developer.project('Guesses'));
    path = `/api/v1/projects/${project_id}`;
    await developer.allow(project_id);
    await query(await urlOf('main'), `${TABLE}; ${rowsOf(0)}`);
    expect((await owner.call('PUT', `${path}/masking`, { body: policy })).status).toBe(200);
    // As long as the project shows full data, guesses can be masked in main itself.
    await query(await urlOf('main'), rowsOf(FIRST_GUESS));
    await developer.branch(project_id, 'before', { data: 'masked' });
    await query(await urlOf('main'), `delete from customer where id >= ${FIRST_GUESS}`);
    await owner.call('PATCH', path, { body: { masked_only: true, rotate_credentials: 'all' } });
    // Another version, so that the masked snapshot from before is not used again.
    const changed = { ...policy, unlisted: 'refuse_likely_personal' };
    expect((await owner.call('PUT', `${path}/masking`, { body: changed })).status).toBe(200);
    await developer.branch(project_id, 'victim', { data: 'masked' });
  });

  test('in any branch that can be written to are masked by another key than main', async () => {
    const real = await maskedOf('victim');
    expect(new Set([...real, ...CUSTOMERS.flatMap((row) => COLUMNS.map((column) => row[column]))]).size).toBe(
      6 * CUSTOMERS.length,
    );

    await developer.branch(project_id, 'empty', { data: 'none' });
    await query(await urlOf('empty'), rowsOf(FIRST_GUESS));
    const { body: empty } = await developer.get<{ id: string }>(`${path}/branches/empty`);
    await developer.branch(project_id, 'guessed', { data: 'masked', source_branch_id: empty.id });
    await query(await urlOf('victim'), rowsOf(FIRST_GUESS));
    const guesses = [
      await maskedOf('guessed', FIRST_GUESS),
      await throughSnapshot('empty', 'guessed-2'),
      await throughSnapshot('victim', 'guessed-3'),
      await maskedOf('before', FIRST_GUESS),
    ];
    for (const found of guesses) expect(found.filter((value) => real.includes(value))).toEqual([]);
  });

  test('stay apart from copies of main, which are masked alike', async () => {
    await owner.post(`${path}/branches/main/snapshots`, { data: 'masked', name: 'again' });
    const { body } = await owner.get<{ snapshots: { id: string; name: string }[] }>(`${path}/snapshots`);
    const again = body.snapshots.find(({ name }) => name === 'again');
    await developer.branch(project_id, 'again', { snapshot_id: again?.id });
    expect(await maskedOf('again')).toEqual(await maskedOf('victim'));
  });
});
