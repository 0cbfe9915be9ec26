import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeAll, beforeEach, describe, expect, inject, test } from 'vitest';
import { Api, type BranchBody, FROM_LOOPBACK, type ProjectBody } from '../support/api.ts';
import { catalogLines, differentLines } from '../support/catalog-lines.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { readStackFile } from '../support/stack/started-stack.ts';
import { tokenOf } from '../support/tenants.ts';

interface SnapshotBody {
  id: string;
  kind: string;
  branch_id: string;
  size_bytes: number;
  expires_at: string | null;
  [field: string]: unknown;
}

const TENANT = { tenant: 'historians' };

let api: Api;
let project: ProjectBody;
let mainUrl: string;
let path: string;

beforeAll(async () => {
  api = new Api(inject('stack').url, await tokenOf({ ...TENANT, role: 'owner' }));
  project = await api.project('History', { storage_quota_gib: 2 });
  path = `/api/v1/projects/${project.id}`;
  await api.allow(project.id);
  mainUrl = (await api.credentials(project.id, 'main')).direct_url;
  await query(mainUrl, 'create table item (id int primary key); insert into item values (1)');
});

const take = (ref: string, body: Record<string, unknown> = {}, key?: string) =>
  api.post<SnapshotBody>(
    `${path}/branches/${ref}/snapshots`,
    body,
    key === undefined ? undefined : { 'Idempotency-Key': key },
  );
const snapshotsOf = async (ref: string) =>
  (await api.get<{ snapshots: SnapshotBody[] }>(`${path}/branches/${ref}/snapshots`)).body.snapshots;
const reset = (ref: string, body: Record<string, unknown>) =>
  api.post<BranchBody>(`${path}/branches/${ref}/reset`, body);
const urlOf = async (ref: string) => (await api.credentials(project.id, ref)).direct_url;
const catalogAt = async (url: string) => {
  const client = await connect(url);
  try {
    return await catalogLines(client, { rights: true });
  } finally {
    await client.end();
  }
};
const idsAt = async (url: string) =>
  (await query<{ id: number }>(url, 'select id from item order by id')).map(({ id }) => id);

describe('a snapshot', () => {
  test('is listed, cloned and deleted; a repeated request takes no other', async () => {
    const first = await take('main', { name: 'before', ttl_seconds: 3600 }, 'once');
    expect(first).toMatchObject({
      status: 201,
      body: { name: 'before', kind: 'manual', branch_id: project.main_branch.id },
    });
    expect(first.body.size_bytes).toBeGreaterThan(1_000_000);
    expect(first.body.expires_at).not.toBeNull();
    expect((await take('main', { name: 'before', ttl_seconds: 3600 }, 'once')).body).toEqual(first.body);
    expect(await snapshotsOf('main')).toEqual([first.body]);

    await query(mainUrl, 'insert into item values (2)');
    const branch = await api.branch(project.id, 'of-snapshot', { snapshot_id: first.body.id });
    expect(branch.parent_branch_id).toBe(project.main_branch.id);
    const again = (body: Record<string, unknown>) =>
      api.post(`${path}/branches`, { branch_name: 'of-snapshot', on_exists: 'return', ...body });
    expect(await again({ snapshot_id: first.body.id })).toMatchObject({
      status: 200,
      body: { id: branch.id },
    });
    expect(await again({})).toMatchObject({ status: 409, body: { error: 'BRANCH_EXISTS' } });
    expect(await idsAt(await urlOf('of-snapshot'))).toEqual([1]);
    const latest = await take('main');
    await api.branch(project.id, 'of-latest', { from: 'latest_snapshot' });
    expect(await idsAt(await urlOf('of-latest'))).toEqual([1, 2]);

    for (const { id } of [first.body, latest.body])
      expect(await api.delete(`${path}/snapshots/${id}`)).toMatchObject({ status: 202, body: { id } });
    expect(await snapshotsOf('main')).toEqual([]);
    const gone = { branch_name: 'of-gone', snapshot_id: first.body.id };
    expect(await api.post(`${path}/branches`, gone)).toMatchObject({ status: 404 });
    const none = { branch_name: 'of-none', from: 'latest_snapshot' };
    expect(await api.post(`${path}/branches`, none)).toMatchObject({
      status: 409,
      body: { error: 'NO_SNAPSHOT' },
    });
    for (const name of ['of-snapshot', 'of-latest']) await api.delete(`${path}/branches/${name}?purge=true`);
  });

  let taken: Promise<SnapshotBody> | undefined;
  /** A snapshot of `main`, which the last of these tests deletes. */
  const spared = () => {
    taken ??= take('main').then(({ body }) => body);
    return taken;
  };

  test('is unknown to another tenant', async () => {
    const { id } = await spared();
    const other = new Api(inject('stack').url, await tokenOf({ tenant: 'another-tenant', role: 'owner' }));
    const theirs = await other.project('Theirs');
    for (const asked of [
      await other.patch(`${path}/snapshots/${id}`, { spares: 1 }),
      await other.delete(`${path}/snapshots/${id}`),
      await other.delete(`/api/v1/projects/${theirs.id}/snapshots/${id}`),
      await other.post(`/api/v1/projects/${theirs.id}/branches`, {
        branch_name: 'stolen',
        snapshot_id: id,
      }),
      await other.post(`/api/v1/projects/${theirs.id}/branches/main/reset`, {
        to: id,
        confirm: 'main',
      }),
    ])
      expect(asked.status).toBe(404);
  });

  test('has as many spares as its users want, which its host gets', async () => {
    const snapshot = await spared();
    const one = `${path}/snapshots/${snapshot.id}`;
    expect([snapshot.spares, project.spares]).toEqual(['auto', 'auto']);
    const { postgres } = socketsOf(readStackFile(inject('stack').devDir));
    const onHost = await connectOnHost(postgres, 'branchgate');
    const stored = async () => {
      const sql = `select snapshot.spares as own, project.spares as of_project
        from snapshot join project using (project_id) where snapshot_id = '${snapshot.id}'`;
      return (await onHost.query(sql)).rows[0];
    };
    expect(await api.patch(one, { spares: 2 })).toMatchObject({
      status: 200,
      body: { ...snapshot, spares: 2 },
    });
    // This host has no copy-on-write.
    const spares_state = { wanted: 2, ready: 0, waiting_for: 'reflink' };
    expect(await api.get(path)).toMatchObject({ body: { spares: 'auto', spares_state } });
    expect(await api.patch(path, { spares: 1 })).toMatchObject({
      status: 200,
      body: { spares: 1, spares_state },
    });
    expect(await stored()).toEqual({ own: 2, of_project: 1 });
    for (const spares of [-1, 33, 1.5, 'many', null]) {
      expect((await api.patch(one, { spares })).status, String(spares)).toBe(422);
      expect((await api.patch(path, { spares })).status, String(spares)).toBe(422);
    }
    expect((await api.patch(one, {})).status).toBe(422);
    expect(await api.patch(one, { spares: 'auto' })).toMatchObject({ body: { spares: 'auto' } });
    expect(await api.patch(path, { spares: 'auto' })).toMatchObject({
      body: { spares: 'auto', spares_state: null },
    });
    expect(await stored()).toEqual({ own: null, of_project: null });
    await onHost.end();
    await api.delete(one);
    expect((await api.patch(one, { spares: 1 })).status).toBe(404);
  });

  test('of an unknown source, or of two, is refused', async () => {
    const two = { branch_name: 'two', snapshot_id: crypto.randomUUID(), from: 'latest_snapshot' };
    expect(await api.post(`${path}/branches`, two)).toMatchObject({ status: 422 });
  });
});

describe('a reset', () => {
  test('to the parent keeps id, URL and rules, ends sessions, and can be taken back', async () => {
    const branch = await api.branch(project.id, 'rework', { ttl_seconds: 7200 });
    const url = await urlOf('rework');
    await query(url, 'insert into item values (100)');
    await query(mainUrl, 'insert into item values (101)');
    const session = await connect(url);
    const ended = new Promise((resolve) => session.once('end', resolve));

    const { status, body } = await reset('rework', { to: 'parent', ttl_seconds: 3600 });
    expect([status, body.id, body.ttl_seconds]).toEqual([200, branch.id, 3600]);
    await ended;
    expect(await idsAt(url)).toEqual(await idsAt(mainUrl));
    const [safety] = await snapshotsOf('rework');
    expect(safety).toMatchObject({ kind: 'safety', branch_id: branch.id });
    expect(body).toMatchObject({ safety_snapshot_id: safety?.id });

    expect((await reset('rework', { to: safety?.id })).status).toBe(200);
    expect(await idsAt(url)).toContain(100);
    expect(await snapshotsOf('rework')).toHaveLength(2);

    const again = { branch_name: 'rework', on_exists: 'reset', ttl_seconds: 600 };
    const rerun = await api.post<BranchBody>(`${path}/branches`, again, FROM_LOOPBACK);
    expect(rerun).toMatchObject({ status: 200, body: { id: branch.id, created: false, ttl_seconds: 600 } });
    expect(await idsAt(url)).not.toContain(100);
    await api.delete(`${path}/branches/rework?purge=true`);
    // What they left behind stays until it expires.
    const { body: left } = await api.get<{ snapshots: SnapshotBody[] }>(`${path}/snapshots`);
    expect(left.snapshots.filter(({ branch_id }) => branch_id === branch.id)).toHaveLength(3);
  });

  test('gives a branch the catalogs of its parent', async () => {
    const schema = readFileSync(join(import.meta.dirname, '../support/schemas/rest-service.sql'), 'utf8');
    await query(mainUrl, schema);
    await api.branch(project.id, 'catalogs');
    const url = await urlOf('catalogs');
    const wanted = await catalogAt(mainUrl);
    await query(url, 'drop schema api cascade; alter table item add note text; create table more ()');
    expect(differentLines(wanted, await catalogAt(url)).length).toBeGreaterThan(20);
    expect((await reset('catalogs', { to: 'parent' })).status).toBe(200);
    expect(differentLines(wanted, await catalogAt(url))).toEqual([]);
    await api.delete(`${path}/branches/catalogs?purge=true`);
    await query(mainUrl, 'drop schema api cascade; drop schema internal cascade');
  });

  test('of main needs its name, and main has no parent', async () => {
    expect(await reset('main', { to: 'parent' })).toMatchObject({
      status: 403,
      body: { error: 'BRANCH_PROTECTED' },
    });
    expect(await reset('main', { to: 'parent', confirm: 'main' })).toMatchObject({ status: 409 });
    const { body } = await take('main');
    await query(mainUrl, 'insert into item values (200)');
    expect(await reset('main', { to: body.id, confirm: 'main' })).toMatchObject({ status: 200 });
    expect(await idsAt(mainUrl)).not.toContain(200);
  });

  test('beyond the quota changes nothing', async () => {
    const small = await api.project('Small', { storage_quota_gib: 0.02 });
    await api.allow(small.id);
    const { direct_url: url } = await api.credentials(small.id, 'main');
    const { body: empty } = await api.post<SnapshotBody>(
      `/api/v1/projects/${small.id}/branches/main/snapshots`,
      {},
    );
    await query(url, "create table big as select repeat('x', 1000) from generate_series(1, 5000)");
    const { body: full } = await api.post<SnapshotBody>(
      `/api/v1/projects/${small.id}/branches/main/snapshots`,
      {},
    );
    const to = (id: string) =>
      api.post(`/api/v1/projects/${small.id}/branches/main/reset`, { to: id, confirm: 'main' });
    expect(await to(empty.id)).toMatchObject({ status: 200 });
    await api.patch(`/api/v1/projects/${small.id}`, { storage_quota_gib: 0.008 });
    expect(await to(full.id)).toMatchObject({ status: 409, body: { error: 'STORAGE_QUOTA_EXCEEDED' } });
  });
});

describe('checkpoints', () => {
  interface CheckpointBody {
    checkpoint_id: string;
    label: string | null;
    taken_at: string;
    number: number | null;
  }
  let ref: string;
  let url: string;
  beforeEach(async ({ task }) => {
    ref = `undo-${task.id.replaceAll(/[^0-9]/g, '')}`;
    // Each statement logs in again, because an undo ends the sessions.
    await api.branch(project.id, ref, { connection_attempts_per_minute: 'max' });
    url = await urlOf(ref);
    await query(url, 'create table step (n int)');
  });
  afterEach(() => api.delete(`${path}/branches/${ref}?purge=true`));

  const checkpoint = async (body = {}, headers = {}) => {
    const taken = await api.post<CheckpointBody>(`${path}/branches/${ref}/checkpoints`, body, headers);
    expect(taken.status).toBe(201);
    return taken.body;
  };
  const listed = async () =>
    (await api.get<{ checkpoints: CheckpointBody[] }>(`${path}/branches/${ref}/checkpoints`)).body
      .checkpoints;
  const undo = (body: Record<string, unknown> = {}, headers = {}) =>
    api.post<{ restored: CheckpointBody; safety_checkpoint_id: string }>(
      `${path}/branches/${ref}/undo`,
      body,
      headers,
    );
  const add = (n: number) => query(url, `insert into step values (${n})`);
  const steps = async () =>
    (await query<{ n: number }>(url, 'select n from step order by n')).map(({ n }) => n);

  test('take a branch back step by step, forward by ID, and are cut by the next one', async () => {
    const first = await checkpoint({ label: 'empty' }, { 'Idempotency-Key': 'once' });
    expect(first).toEqual({
      checkpoint_id: expect.any(String),
      label: 'empty',
      taken_at: expect.any(String),
      number: 1,
    });
    expect(await checkpoint({ label: 'empty' }, { 'Idempotency-Key': 'once' })).toEqual(first);
    await add(1);
    const second = await checkpoint();
    await add(2);
    expect(await listed()).toEqual([second, first]);
    expect(await snapshotsOf(ref)).toEqual([]);

    const key = { 'Idempotency-Key': 'back' };
    const undone = await undo({}, key);
    expect(undone).toMatchObject({ status: 200, body: { restored: second } });
    expect((await undo({}, key)).body).toEqual(undone.body);
    expect(await steps()).toEqual([1]);
    expect((await undo()).body.restored).toEqual(first);
    expect(await steps()).toEqual([]);
    expect(await undo()).toMatchObject({
      status: 404,
      body: { message: expect.stringContaining('no 1 checkpoint behind') },
    });
    // An undo can be undone, and the steps count from there again.
    const again = await undo({ to: undone.body.safety_checkpoint_id });
    expect(again.body.restored).toMatchObject({ number: null });
    expect(await steps()).toEqual([1, 2]);
    expect((await undo({ steps: 2 })).body.restored).toEqual(first);
    expect((await undo({ to: second.checkpoint_id })).body.restored).toEqual(second);
    expect((await undo()).body.restored).toEqual(first);
    await add(9);
    const third = await checkpoint();
    expect(third.number).toBe(3);
    expect(await listed()).toEqual([third, first]);
    expect((await undo({ to: second.checkpoint_id })).status).toBe(404);

    const { body } = await api.get<{ audit_events: { name: string; metadata: unknown }[] }>(
      `/api/v1/audit-events?project_id=${project.id}&limit=100`,
    );
    const events = (name: string) => body.audit_events.filter((event) => event.name === name);
    expect(events('branch.undone')).toHaveLength(6);
    expect(events('checkpoint.created').map(({ metadata }) => metadata)).toContainEqual(
      expect.objectContaining({ number: 1, label: 'empty' }),
    );
  });

  test('have the guards of a reset, and stay with their branch', async () => {
    const { checkpoint_id } = await checkpoint();
    await api.patch(`${path}/branches/${ref}`, { protected: true });
    expect(await undo()).toMatchObject({ status: 403, body: { error: 'BRANCH_PROTECTED' } });
    expect((await undo({ confirm: ref })).status).toBe(200);
    await api.patch(`${path}/branches/${ref}`, { protected: false });
    for (const body of [{ to: checkpoint_id, steps: 1 }, { steps: 0 }, { steps: 21 }, { to: 'x' }])
      expect(await undo(body)).toMatchObject({ status: 422 });
    const other = await api.post(`${path}/branches/main/undo`, { to: checkpoint_id, confirm: 'main' });
    expect(other.status).toBe(404);
    const outsider = new Api(inject('stack').url, await tokenOf({ tenant: 'another-tenant', role: 'owner' }));
    expect((await outsider.post(`${path}/branches/${ref}/undo`, {})).status).toBe(404);
    const session = await connect(url);
    await session.query('begin; insert into step values (1)');
    expect(await api.post(`${path}/branches/${ref}/checkpoints`, {})).toMatchObject({
      status: 409,
      body: { error: 'SOURCE_BUSY' },
    });
    await session.end();
  });

  test('taken in parallel have a number each', async () => {
    const taken = await Promise.all([checkpoint(), checkpoint(), checkpoint()]);
    expect(taken.map(({ number }) => number).toSorted()).toEqual([1, 2, 3]);
  });

  test.runIf(IS_NIGHTLY)('undone at random leave what the checkpoint had', async () => {
    /** Contents by number; `at` is where the branch is, null after the newest. */
    const contents = new Map<number, number[]>();
    let at: number | null = null;
    for (let step = 1; step <= 200; step++) {
      const behind = [...contents.keys()]
        .filter((number) => at === null || number < at)
        .sort((a, b) => b - a);
      const back = 1 + Math.floor(Math.random() * 3);
      const target = behind[back - 1];
      if (Math.random() < 0.4 && target !== undefined) {
        expect((await undo({ steps: back })).body.restored.number).toBe(target);
        at = target;
        expect(await steps(), `after step ${step}`).toEqual(contents.get(target));
        continue;
      }
      const { number } = await checkpoint();
      const present = await steps();
      const position = at;
      if (position !== null)
        for (const ahead of contents.keys()) if (ahead > position) contents.delete(ahead);
      contents.set(Number(number), present);
      const [oldest] = contents.keys();
      if (contents.size > 20 && oldest !== undefined) contents.delete(oldest);
      at = null;
      await add(step);
    }
    await eventually(async () =>
      expect((await listed()).map(({ number }) => number).toReversed()).toEqual([...contents.keys()]),
    );
  });
});

describe('a deleted branch', () => {
  test('comes back with its content, passwords and rules, also under another name', async () => {
    const branch = await api.branch(project.id, 'oops', { allow: ['203.0.113.0/24'] });
    const url = await urlOf('oops');
    await query(url, 'insert into item values (300)');
    await api.delete(`${path}/branches/oops`);
    expect(await restorable()).toEqual([branch.id]);
    const taken = await api.branch(project.id, 'oops');
    const back = (body: Record<string, unknown>) =>
      api.post<BranchBody>(`${path}/branches/${branch.id}/restore`, body);
    expect(await back({})).toMatchObject({ status: 409, body: { error: 'BRANCH_EXISTS' } });
    const { status, body } = await back({ branch_name: 'rescued' });
    expect([status, body.id, body.status]).toEqual([200, branch.id, 'active']);
    expect(await urlOf('rescued')).toBe(url.replace(/_br_oops/g, '_br_rescued'));
    expect(await idsAt(await urlOf('rescued'))).toContain(300);
    const { body: rules } = await api.get<{ network_rules: { cidr: string; branch_id: string }[] }>(
      `${path}/network-rules`,
    );
    expect(
      rules.network_rules
        .filter(({ branch_id }) => branch_id === branch.id)
        .map(({ cidr }) => cidr)
        .sort(),
    ).toEqual(['127.0.0.1/32', '203.0.113.0/24']);
    expect(await back({})).toMatchObject({ status: 404 });
    for (const { id } of [body, taken]) await api.delete(`${path}/branches/${id}?purge=true`);
    expect(await restorable()).toEqual([]);
  });

  test('that is purged, or had a lease, is gone', async () => {
    const purged = await api.branch(project.id, 'purged');
    const leased = await api.branch(project.id, 'leased', { lease_seconds: 600 });
    for (const name of ['purged?purge=true', 'leased'])
      expect((await api.delete(`${path}/branches/${name}`)).status).toBe(202);
    expect(await restorable()).toEqual([]);
    for (const { id } of [purged, leased])
      expect(await api.post(`${path}/branches/${id}/restore`, {})).toMatchObject({ status: 404 });
  });
});

test('a deleted branch that is kept is purged by its id, once', async () => {
  const { id } = await api.branch(project.id, 'kept-then-purged');
  await api.delete(`${path}/branches/kept-then-purged`);
  const purge = (of = api) => of.delete<{ id: string }>(`${path}/branches/${id}?purge=true`);
  const other = new Api(inject('stack').url, await tokenOf({ tenant: 'another-tenant', role: 'owner' }));
  expect((await purge(other)).status).toBe(404);
  expect((await api.delete(`${path}/branches/${id}`)).status).toBe(404);
  // 503 while the job of the deletion runs.
  await eventually(async () => expect(await purge()).toMatchObject({ status: 202, body: { id } }));
  expect(await restorable()).not.toContain(id);
  expect((await purge()).status).toBe(404);
  expect((await api.post(`${path}/branches/${id}/restore`, {})).status).toBe(404);
});

async function restorable() {
  const { body } = await api.get<{ branches: BranchBody[] }>(`${path}/branches?status=deleted`);
  for (const { deletes_at } of body.branches)
    expect(Date.parse(String(deletes_at)) - Date.now()).toBeGreaterThan(86_000_000);
  return body.branches.map(({ id }) => id);
}

test('a protected branch is not deleted, and its reset asks for its name', async () => {
  const branch = await api.branch(project.id, 'precious');
  const ref = `${path}/branches/precious`;
  expect(await api.patch(ref, { protected: true })).toMatchObject({ status: 200, body: { protected: true } });
  const operator = new Api(inject('stack').url, await tokenOf({ ...TENANT, role: 'operator' }));
  expect((await operator.patch(ref, { protected: false })).status).toBe(403);
  const row = { primary_key: 'id', ids: [1] };
  const rows = `${ref}/tables/item/rows`;
  for (const refused of [
    await api.delete(ref),
    await api.delete(`${ref}?purge=true`),
    await reset('precious', { to: 'parent' }),
    await api.post(`${path}/branches`, { branch_name: 'precious', on_exists: 'reset' }),
  ])
    expect(refused).toMatchObject({ status: 403, body: { error: 'BRANCH_PROTECTED' } });
  expect(await idsAt(await urlOf('precious'))).toContain(1);
  expect((await api.call('DELETE', rows, { body: row })).status).toBe(200);
  expect((await reset('precious', { to: 'parent', confirm: 'precious' })).status).toBe(200);
  expect(await api.patch(ref, { protected: false })).toMatchObject({ status: 200 });
  expect((await api.delete(ref)).body).toMatchObject({ id: branch.id });
});

test('a schedule takes snapshots of main, and shows in the project', async () => {
  const snapshot_schedule = { every: '6h', keep: 2 };
  expect(await api.patch(path, { snapshot_schedule })).toMatchObject({
    status: 200,
    body: { snapshot_schedule },
  });
  expect((await api.patch(path, { snapshot_schedule: { every: '2h', keep: 2 } })).status).toBe(422);
  expect(await api.patch(path, { snapshot_schedule: null })).toMatchObject({
    body: { snapshot_schedule: null },
  });
});

test('the audit log distinguishes a reset, a deletion and a restored branch', async () => {
  const { body } = await api.get<{ audit_events: { name: string }[] }>(
    `/api/v1/audit-events?project_id=${project.id}&limit=100`,
  );
  const names = new Set(body.audit_events.map(({ name }) => name));
  for (const name of [
    'snapshot.created',
    'snapshot.deleted',
    'snapshot.spares.changed',
    'project.spares.changed',
    'branch.reset',
    'branch.restored',
    'branch.deleted',
    'branch.purged',
  ])
    expect(names).toContain(name);
});

test('a branch of a masked snapshot has other values, and a new personal column refuses the next one', async () => {
  await query(
    mainUrl,
    "create table customer (id int primary key, email text); insert into customer values (1, 'ada@example.com')",
  );
  const policy = { rules: [{ table: 'customer', column: 'email', with: 'email' }] };
  expect((await api.call('PUT', `${path}/masking`, { body: policy })).status).toBe(200);
  const { status, body } = await take('main', { data: 'masked' });
  expect([status, body.data, body.masking_version]).toEqual([201, 'masked', 1]);
  await api.branch(project.id, 'masked', { snapshot_id: body.id });
  const [row] = await query<{ email: string }>(await urlOf('masked'), 'select email from customer');
  expect(row?.email).toMatch(/^[a-z]{20}@example\.com$/);

  await api.delete(`${path}/snapshots/${body.id}`);
});

describe('a branch with other data', () => {
  const emailOf = async (ref: string) =>
    (await query<{ email: string }>(await urlOf(ref), 'select email from customer')).map(
      ({ email }) => email,
    );
  const made = async () => (await snapshotsOf('main')).filter(({ kind }) => kind === 'masked');
  const MASKED = /^[a-z]{20}@example\.com$/;

  test('is masked by a snapshot that is made once, also of two requests in parallel', async () => {
    expect(await made()).toEqual([]);
    const branches = await Promise.all(
      ['m-1', 'm-2'].map((name) => api.branch(project.id, name, { data: 'masked' })),
    );
    const later = await api.branch(project.id, 'm-3', { data: 'masked' });
    for (const branch of [...branches, later]) {
      expect(branch).toMatchObject({ data: 'masked', keep_tables: [], masking_version: 1 });
      expect(await emailOf(branch.branch_name)).toEqual([expect.stringMatching(MASKED)]);
    }
    const [snapshot, ...others] = await made();
    expect(others).toEqual([]);
    expect(snapshot).toMatchObject({ data: 'masked', masking_version: 1 });
    expect(snapshot?.expires_at).not.toBeNull();
    expect(later).toMatchObject({ checked_at: snapshot?.checked_at });
    const again = { branch_name: 'm-3', on_exists: 'return' };
    expect(await api.post(`${path}/branches`, { ...again, data: 'masked' })).toMatchObject({ status: 200 });
    expect(await api.post(`${path}/branches`, again)).toMatchObject({ status: 409 });
  });

  test.runIf(IS_NIGHTLY)(
    'stays masked after a reset to its parent, in its clones and in their snapshots',
    async () => {
      await query(await urlOf('m-1'), "update customer set email = 'changed'");
      expect(await reset('m-1', { to: 'parent' })).toMatchObject({ status: 200, body: { data: 'masked' } });
      expect(await emailOf('m-1')).toEqual([expect.stringMatching(MASKED)]);
      const { body: source } = await api.get<BranchBody>(`${path}/branches/m-1`);
      const copy = await api.branch(project.id, 'm-copy', { source_branch_id: source.id });
      expect(copy).toMatchObject({ data: 'masked', masking_version: 1 });
      const { body } = await take('m-copy');
      expect(body).toMatchObject({ kind: 'manual', data: 'masked', masking_version: 1 });
      const full = await take('main');
      expect(await reset('m-copy', { to: full.body.id })).toMatchObject({
        body: { data: 'full', masking_version: null },
      });
      expect(await emailOf('m-copy')).toEqual(['ada@example.com']);
      await api.delete(`${path}/snapshots/${full.body.id}`);
    },
  );

  test('has no rows but those of kept tables, and leaves no snapshot', async () => {
    const empty = await api.branch(project.id, 'empty', { data: 'none', keep_tables: ['item'] });
    expect(empty).toMatchObject({ data: 'none', keep_tables: ['item'], masking_version: null });
    expect(await emailOf('empty')).toEqual([]);
    expect(await idsAt(await urlOf('empty'))).not.toEqual([]);
    await query(await urlOf('empty'), "insert into customer values (7, 'x')");
    expect(await reset('empty', { to: 'parent' })).toMatchObject({
      body: { data: 'none', keep_tables: ['item'] },
    });
    expect(await emailOf('empty')).toEqual([]);
    const { body } = await api.get<{ snapshots: SnapshotBody[] }>(`${path}/snapshots`);
    expect(body.snapshots.filter(({ data }) => data === 'none').map(({ kind }) => kind)).toEqual(['safety']);
  });

  test.each([
    [{ data: 'masked', from: 'latest_snapshot' }, 'data'],
    [{ data: 'masked', keep_tables: ['item'] }, 'keep_tables'],
  ])('is refused with %j', async (body, field) => {
    const refused = await api.post<{ details: { path: string }[] }>(`${path}/branches`, {
      branch_name: 'nope',
      ...body,
    });
    expect(refused.status).toBe(422);
    expect(refused.body.details.map(({ path }) => path)).toEqual([field]);
  });

  test.runIf(IS_NIGHTLY)(
    'is refused after a migration that adds a personal column, although a snapshot is there',
    async () => {
      await query(mainUrl, 'alter table customer add email2 text');
      const refused = await api.post<Record<string, unknown>>(`${path}/branches`, {
        branch_name: 'm-4',
        data: 'masked',
      });
      expect(refused).toMatchObject({ status: 409, body: { error: 'MASKING_INCOMPLETE' } });
      expect(refused.body.columns).toEqual([
        { table: 'public.customer', column: 'email2', reason: 'its name says e-mail' },
      ]);
      expect((await take('main', { data: 'masked' })).body).toMatchObject({ columns: refused.body.columns });
      expect((await api.get(`${path}/branches/m-4`)).status).toBe(404);

      const checkOf = async (branch: string, body = {}) =>
        (await api.post<Record<string, unknown>>(`${path}/branches/${branch}/masking/check`, body)).body;
      const uncovered = { version: 1, covered: false, problems: refused.body.columns };
      expect(await checkOf('main')).toMatchObject({ branch_name: 'main', ...uncovered });
      expect(await checkOf('m-2')).toMatchObject({ branch_name: 'm-2', covered: true, problems: [] });
      const email = { table: 'customer', column: 'email', with: 'email' };
      const rules = [email, { ...email, column: 'email2' }];
      expect(await checkOf('main', { rules })).toMatchObject({ version: null, covered: true, problems: [] });
      const keep = await checkOf('main', { rules: [email], unlisted: 'keep' });
      expect(keep).toMatchObject({ covered: true, suggestions: [{ column: 'email2', with: 'email' }] });
      expect(await checkOf('main', { unlisted: 'keep' })).toMatchObject({ error: 'VALIDATION_FAILED' });
      const unset = await api.project('No policy');
      const none = await api.post(`/api/v1/projects/${unset.id}/branches/main/masking/check`, {});
      expect(none).toMatchObject({ status: 409, body: { error: 'MASKING_INCOMPLETE' } });
      for (const name of ['m-1', 'm-2', 'm-3', 'm-copy', 'empty'])
        await api.delete(`${path}/branches/${name}?purge=true`);
    },
  );
});
