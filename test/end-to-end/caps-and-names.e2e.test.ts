import { beforeAll, describe, expect, test } from 'vitest';
import {
  type Api,
  type BranchBody,
  type Credentials,
  FROM_LOOPBACK,
  type ProjectBody,
} from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { fillText } from '../support/load.ts';
import { firstByDay } from '../support/nightly.ts';
import { ownerOf } from '../support/tenants.ts';

let api: Api;
let project: ProjectBody;
const path = (id = project.id) => `/api/v1/projects/${id}/branches`;

beforeAll(async () => {
  api = await ownerOf('caps');
  project = await api.project('Caps');
});

describe('the branch limit', () => {
  test('twenty concurrent creations at nine branches: one succeeds, nineteen get the limit', async () => {
    await api.post(`${path()}/batch`, { count: 8, name_prefix: 'branch-' }, FROM_LOOPBACK);
    const responses = await Promise.all(
      Array.from({ length: 20 }, (_, n) => api.post(path(), { branch_name: `extra-${n}` }, FROM_LOOPBACK)),
    );
    const statuses = responses.map(({ status }) => status).sort();
    expect(statuses).toEqual([201, ...Array<number>(19).fill(429)]);
    for (const { status, body } of responses) {
      if (status === 429) {
        expect(body).toEqual({
          error: 'BRANCH_LIMIT_REACHED',
          message: expect.any(String),
          limit: 10,
          current: 10,
          retry_after: null,
          request_id: expect.any(String),
        });
      }
    }
    const { body } = await api.get<{ branches: BranchBody[] }>(path());
    expect(body.branches).toHaveLength(10);
    const first = body.branches[1];
    expect((await api.delete(`${path()}/${first?.id}`)).status).toBe(202);
    expect((await api.post(path(), { branch_name: 'replacement' }, FROM_LOOPBACK)).status).toBe(201);
  });

  test('a branch that is there is returned also at the limit, and leased branches count like all others', async () => {
    const create = (body: object) => api.post(path(), body, FROM_LOOPBACK);
    const there = { branch_name: 'replacement', on_exists: 'return' };
    expect(await create(there)).toMatchObject({ status: 200, body: { created: false } });
    expect(await create({ ...there, branch_name: 'eleventh' })).toMatchObject({ status: 429 });
    const leased = { branch_name: 'leased', lease_seconds: 600 };
    const refused = {
      status: 429,
      body: {
        error: 'BRANCH_LIMIT_REACHED',
        message: expect.stringContaining('ask the platform operator'),
        limit: 10,
        current: 10,
        retry_after: null,
      },
    };
    expect(await create(leased)).toMatchObject(refused);
    expect((await api.delete(`${path()}/replacement`)).status).toBe(202);
    expect((await create(leased)).status).toBe(201);
    const { body } = await api.get(`/api/v1/projects/${project.id}`);
    expect(body).toMatchObject({ branch_count: 10, leased_branch_count: 1 });
    // The end of the lease frees a slot by itself.
    expect(Date.parse(String(body.next_slot_at)) - Date.now()).toBeCloseTo(600_000, -5);
    const tooMany = { count: 2, name_prefix: 'many-', lease_seconds: 600 };
    expect(await api.post(`${path()}/batch`, tooMany, FROM_LOOPBACK)).toMatchObject(refused);
  });
});

/**
 * The stack measures once a minute, so these requests come before the measurement that contains their data.
 */
describe('the storage quota between two measurements', () => {
  const MIB = 1024 * 1024;
  const stateOf = async (id: string) =>
    (await api.get<{ storage_state: string }>(`/api/v1/projects/${id}/usage`)).body.storage_state;

  let shop: ProjectBody;
  let credentials: Credentials;
  beforeAll(async () => {
    shop = await api.project('Loaded', { storage_quota_gib: 24 / 1024 });
    await api.allow(shop.id);
    credentials = await api.credentials(shop.id, 'main');
    await query(credentials.direct_url, 'create table filled (data text)');
    await fillText(credentials.direct_url, 8);
  });

  test('a clone of data that was just loaded is refused with its size, and leaves nothing', async () => {
    const limit_bytes = 24 * MIB;
    const { direct_url } = credentials;
    const { status, body } = await api.post(path(shop.id), { branch_name: 'at-once' }, FROM_LOOPBACK);
    expect([status, body.error]).toEqual([409, 'STORAGE_QUOTA_EXCEEDED']);
    const [size] = await query<{ bytes: string }>(
      direct_url,
      'select pg_database_size(current_database()) as bytes',
    );
    for (const bytes of [body.used_bytes, body.needed_bytes])
      expect(Math.abs(Number(bytes) - Number(size?.bytes))).toBeLessThan(MIB);
    expect(body.limit_bytes).toBe(limit_bytes);
    expect((await api.get<{ branches: unknown[] }>(path(shop.id))).body.branches).toHaveLength(1);
    const databases = await query<{ name: string }>(
      direct_url,
      "select datname as name from pg_database where datname like $1 || '%'",
      [shop.main_branch.database_name],
    );
    expect(databases).toEqual([{ name: shop.main_branch.database_name }]);
  });

  test('a write block ends when data or a branch is deleted, long before the next measurement', async () => {
    const { direct_url, database_url } = credentials;
    const quota = (mib: number) => api.patch(`/v1/projects/${shop.id}`, { storage_quota_gib: mib / 1024 });
    await quota(256);
    const branch = await api.branch(shop.id, 'copy');

    expect((await quota(22)).body.storage_state).toBe('write_blocked');
    expect((await api.delete(`${path(shop.id)}/${branch.id}`)).status).toBe(202);
    await eventually(async () => expect(await stateOf(shop.id)).toBe('normal'));

    expect((await quota(14)).body.storage_state).toBe('write_blocked');
    await query(direct_url, 'truncate filled');
    await eventually(async () => expect(await stateOf(shop.id)).toBe('normal'));
    // One connection, because attempts are limited.
    const client = await connect(database_url);
    await eventually(() => client.query("insert into filled values ('x')"));
    await client.end();
  });
});

describe('names', () => {
  /** Its key leaves the fewest characters to the names of its branches. */
  let long: ProjectBody;
  beforeAll(async () => {
    long = await api.project('Long', { app_key: `long${Date.now().toString(36)}`.padEnd(30, 'x') });
  });

  test('two concurrent creations with one name: one succeeds, one gets a conflict', async () => {
    const responses = await Promise.all(
      [1, 2].map(() => api.post(path(long.id), { branch_name: 'same-name' }, FROM_LOOPBACK)),
    );
    expect(responses.map(({ status }) => status).sort()).toEqual([201, 409]);
    expect(responses.find(({ status }) => status === 409)?.body.error).toBe('BRANCH_EXISTS');
  });

  test('a database name of 63 characters with hyphens works; one of 64 is refused with the maximum length', async () => {
    const longest = Number(long.max_slug_length);
    const made = await api.branch(long.id, '-'.repeat(longest - 1).concat('x'));
    expect(made.database_name).toHaveLength(63);
    const { database_url } = await api.credentials(long.id, made.id);
    expect(await query(database_url, 'select current_database() as name')).toEqual([
      { name: made.database_name },
    ]);
    const child = await api.branch(long.id, 'of-the-long-one', { source_branch_id: made.id });
    expect(child.status).toBe('active');
    const refused = await api.post(path(long.id), { branch_name: 'x'.repeat(longest + 1) }, FROM_LOOPBACK);
    expect(refused).toMatchObject({
      status: 422,
      body: { error: 'DATABASE_NAME_TOO_LONG', length: 64, max_slug_length: longest },
    });
  });

  test.each([
    'main',
    'ab',
    'Upper',
    "quo'te",
    'quo"te',
    'new\nline',
    'a+b',
    'a b',
    '',
    'x'.repeat(49),
    'semi;colon',
    '../up',
  ])('%j never reaches the host', async (branch_name) => {
    const before = await api.get<{ jobs: unknown[] }>(`/api/v1/projects/${project.id}/jobs?limit=100`);
    const response = await api.post(path(), { branch_name }, FROM_LOOPBACK);
    expect(response).toMatchObject({ status: 422, body: { error: 'VALIDATION_FAILED' } });
    for (const { path } of response.body.details as { path: string }[]) expect(path).toBe('branch_name');
    const after = await api.get<{ jobs: unknown[] }>(`/api/v1/projects/${project.id}/jobs?limit=100`);
    expect(after.body.jobs).toHaveLength(before.body.jobs.length);
  });

  test.each(firstByDay(1, ['replication', 'all', 'sameuser', 'samerole', '---']))(
    'the keyword %s is a valid name',
    async (branch_name) => {
      await api.branch(long.id, branch_name);
      const { database_url } = await api.credentials(long.id, branch_name);
      expect(await query(database_url, 'select 1 as one')).toEqual([{ one: 1 }]);
    },
  );

  test.each([
    [{ name: 'x', app_key: 'br' }, 'app_key'],
    [{ name: 'x', app_key: 'a"; drop database postgres; --' }, 'app_key'],
    [{ name: 'x', app_key: 'a'.repeat(46), env: 'staging' }, 'app_key'],
    [{ name: 'x', env: 'br' }, 'env'],
    [{ name: 'x', env: 'too_long' }, 'env'],
    [{ name: '' }, 'name'],
    [{ name: 'x', colour: 'red' }, 'colour'],
  ])('a project %j is refused', async (body, field) => {
    const response = await api.post('/api/v1/projects', body);
    expect(response).toMatchObject({ status: 422, body: { error: 'VALIDATION_FAILED' } });
    expect(response.body.details).toEqual(expect.arrayContaining([expect.objectContaining({ path: field })]));
  });
});
