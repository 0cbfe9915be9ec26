import { setTimeout as sleep } from 'node:timers/promises';
import { beforeAll, describe, expect, inject, test } from 'vitest';
import { Api, type ApiResponse } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { tokenOf } from '../support/tenants.ts';

const TENANT = 'tried';
const { url } = inject('stack');

let owner: Api;
let project: string;
let path: string;
let direct: string;

interface Report {
  verdict: string;
  outcome: string;
  role: string;
  error: Record<string, unknown> | null;
  source: Record<string, unknown>;
  results: { rows: unknown[][] }[];
  rows: { tables: Record<string, unknown>[] };
  schema: { changes: Record<string, unknown>[] };
  tables: Record<string, unknown>[];
}

type Tried = ApiResponse<Report & { id: string; error: unknown }>;

/** Waits for a trial that has become a job, as on a busy machine. */
async function tryOn(api: Api, branch: string, body: object): Promise<Tried> {
  const of = `${path}/branches/${branch}/try`;
  let tried: Tried = await api.post(of, body);
  const { id } = tried.body;
  while (tried.status === 202) {
    await sleep(500);
    tried = await api.get(`${of}/${id}`);
  }
  return tried;
}

const keyOf = async (more: Record<string, unknown>) => {
  const wanted = { name: 'agent', role: 'operator', scopes: ['branchgate:write'], expires_in_days: 1 };
  const { body } = await owner.post<{ key: string }>('/api/v1/api-keys', {
    ...wanted,
    project_id: project,
    ...more,
  });
  return new Api(url, body.key);
};

beforeAll(async () => {
  owner = new Api(url, await tokenOf({ tenant: TENANT, role: 'owner' }));
  ({ id: project } = await owner.project('Tried'));
  path = `/api/v1/projects/${project}`;
  await owner.post(`${path}/network-rules`, { cidr: '127.0.0.1' });
  ({ direct_url: direct } = await owner.credentials(project, 'main'));
  await query(
    direct,
    "create table book (id int primary key, title text); insert into book values (7, 'Seven')",
  );
});

const books = () => query<{ title: string }>(direct, 'select title from book order by id');

test('main is tried on, stays as it was, and the audit log has no text', async () => {
  const tried = await tryOn(owner, 'main', {
    sql: "alter table book add price int; update book set title = 'canary', price = 1",
    role: 'owner',
  });
  expect(tried).toMatchObject({
    status: 200,
    body: {
      verdict: 'safe',
      outcome: 'succeeded',
      role: 'owner',
      source: { kind: 'branch', name: 'main', data: 'full' },
      rows: { tables: [{ name: 'book', updated: 1 }] },
      schema: { changes: [{ identity: 'public.book.price', change: 'added' }] },
      tables: [expect.objectContaining({ name: 'book', rewritten: false })],
    },
  });
  expect(await books()).toEqual([{ title: 'Seven' }]);
  const { body: list } = await owner.get<{ branches: unknown[] }>(`${path}/branches`);
  expect(list.branches).toHaveLength(1);
  const { body: audit } = await owner.get<{ audit_events: { name: string; metadata: object }[] }>(
    `/api/v1/audit-events?project_id=${project}`,
  );
  const events = audit.audit_events.filter(({ name }) => name === 'branch.tried');
  expect(events).toMatchObject([{ metadata: { role: 'owner', outcome: 'succeeded', statements: 2 } }]);
  expect(JSON.stringify(audit)).not.toContain('canary');
});

test('a query that main refuses points to the trial, and a failed one says which login may run it', async () => {
  const refused = await owner.post(`${path}/branches/main/query`, {
    sql: 'delete from book',
    role: 'read_write',
  });
  expect(refused).toMatchObject({
    status: 403,
    body: { message: expect.stringContaining('branchgate try') },
  });
  expect((await tryOn(owner, 'main', { sql: 'select 1; drop table book' })).body).toMatchObject({
    verdict: 'failed',
    outcome: 'failed',
    role: 'read_write',
    error: { statement: 2, sqlstate: '42501', required_role: 'owner' },
    rows: { tables: [] },
  });
  expect((await tryOn(owner, 'main', { sql: 'begin; commit; select 1' })).status).toBe(422);
  expect((await tryOn(owner, 'gone', { sql: 'select 1' })).status).toBe(404);
});

test('each login takes its right, and a key with a pattern tries on what it may clone', async () => {
  const viewer = await keyOf({ role: 'viewer', scopes: ['branchgate:read'] });
  expect(await tryOn(viewer, 'main', { sql: 'select title from book' })).toMatchObject({
    status: 200,
    body: { role: 'read_only', results: [{ rows: [['Seven']] }] },
  });
  for (const role of ['read_write', 'owner'])
    expect((await tryOn(viewer, 'main', { sql: 'select 1', role })).status).toBe(403);
  await owner.branch(project, 'other');
  const agent = await keyOf({ branch_pattern: 'agent-*' });
  expect((await tryOn(agent, 'main', { sql: 'delete from book' })).body).toMatchObject({
    verdict: 'danger',
    rows: { tables: [{ name: 'book', deleted: 1 }] },
  });
  expect((await tryOn(agent, 'other', { sql: 'select 1' })).status).toBe(404);
  expect(await books()).toEqual([{ title: 'Seven' }]);
});

test('who gets masked data only tries on a masked snapshot, or not at all', async () => {
  const policy = { rules: [{ table: 'book', column: 'title', with: 'hash' }], unlisted: 'keep' };
  expect((await owner.call('PUT', `${path}/masking`, { body: policy })).status).toBe(200);
  await owner.patch(path, { masked_only: true });
  const key = await keyOf({});
  const sql = 'select title from book';
  expect((await tryOn(key, 'main', { sql })).status).toBe(403);
  expect((await owner.post(`${path}/branches/main/snapshots`, { data: 'masked' })).status).toBe(201);
  const { status, body } = await tryOn(key, 'main', { sql });
  expect([status, body.source]).toEqual([200, expect.objectContaining({ kind: 'snapshot', data: 'masked' })]);
  expect(body.results[0]?.rows).toHaveLength(1);
  expect(JSON.stringify(body)).not.toContain('Seven');
  await owner.patch(path, { masked_only: false });
});

describe.runIf(IS_NIGHTLY)('longer than a request', () => {
  test('the trial is a job, whose report only its caller reads', async () => {
    const body = { sql: 'select pg_sleep(27), title from book', role: 'read_write' };
    const first = await owner.post<{ id: string; kind: string }>(`${path}/branches/main/try`, body);
    expect(first).toMatchObject({ status: 202, body: { kind: 'branch.try' } });
    const report = `${path}/branches/main/try/${first.body.id}`;
    const done = await eventually(async () => {
      const response = await owner.get<Report>(report);
      expect(response.status).toBe(200);
      return response.body;
    });
    expect(done).toMatchObject({ outcome: 'succeeded', results: [{ rows: [['', 'Seven']] }] });
    const admin = new Api(url, await tokenOf({ tenant: TENANT, role: 'admin' }));
    expect((await admin.get(report)).status).toBe(404);
  });
});

test.runIf(IS_NIGHTLY)('a trial that fills the disk is ended, and says why', async () => {
  const sql = `create temp table junk (text text); alter table junk alter text set storage external;
    insert into junk select repeat('x', 100000) from generate_series(1, 1000000)`;
  const { body } = await tryOn(owner, 'main', { sql, role: 'owner' });
  expect(body).toMatchObject({
    outcome: 'failed',
    error: { message: expect.stringMatching(/writes more than a copy may hold/) },
  });
});
