import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { CLOUDFLARE_WORKERS_ADDRESS } from '../../shared/cidr.ts';
import { Api, type BranchBody, type Credentials, FROM_LOOPBACK, type ProjectBody } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { fillLedger, imbalance, Load } from '../support/load.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { ownerOf, readD1 } from '../support/tenants.ts';

/** Branches for machines: `docs/short-lived-branches.md`. */

const LEASE_SECONDS = 30;
const RENEW_EVERY_MS = 5_000;

type Batch = { branches: (BranchBody & { credentials?: Credentials })[] };

let api: Api;
let project: ProjectBody;
const path = (id = project.id) => `/api/v1/projects/${id}/branches`;
const create = (body: Record<string, unknown>, id = project.id) =>
  api.post<BranchBody & { credentials?: Credentials }>(path(id), body, FROM_LOOPBACK);
const createBatch = (body: Record<string, unknown>, id = project.id) =>
  api.post<Batch>(`${path(id)}/batch`, body, FROM_LOOPBACK);
const namesWith = async (filter: string) => {
  const { body } = await api.get<{ branches: BranchBody[] }>(`${path()}?${filter}`);
  return body.branches.map(({ branch_name }) => branch_name);
};

/** What the last test waits for begins here, so that the other tests use the time. */
let leaseStart = 0;
let left: BranchBody;
let renewed: BranchBody;
let renewal: NodeJS.Timeout;
let session: Awaited<ReturnType<typeof connect>>;
const renew = () => api.post<BranchBody>(`${path()}/${renewed.id}/lease`, undefined);

beforeAll(async () => {
  api = await ownerOf('short-lived');
  project = await api.project('Short-lived', { storage_quota_gib: 5 });
  const lease = { lease_seconds: LEASE_SECONDS };
  left = await api.branch(project.id, 'left', lease);
  renewed = await api.branch(project.id, 'renewed', lease);
  leaseStart = Date.now();
  renewal = setInterval(() => void renew(), RENEW_EVERY_MS);
  session = await connect((await api.credentials(project.id, 'left')).database_url);
});
afterAll(async () => {
  clearInterval(renewal);
  await session?.end().catch(() => {});
});

describe('a creation', () => {
  test('takes a life in seconds, labels and networks, and returns the credentials', async () => {
    const made = await create({
      branch_name: 'complete',
      ttl_seconds: 3600,
      labels: { pr: '7', ref: 'a=b' },
      allow: ['203.0.113.9/32', 'me'],
      include: ['credentials'],
    });
    expect(made).toMatchObject({
      status: 201,
      body: { lifespan: 'custom', ttl_seconds: 3600, labels: { pr: '7', ref: 'a=b' }, created: true },
    });
    const { created_at, expires_at } = made.body as unknown as Record<string, string>;
    expect(Date.parse(expires_at ?? '') - Date.parse(created_at ?? '')).toBe(3_600_000);
    expect(await query(made.body.credentials?.database_url ?? '', 'select 1 as one')).toEqual([{ one: 1 }]);
    const rules = await api.get<{ network_rules: { cidr: string }[] }>(
      `/api/v1/projects/${project.id}/network-rules?branch_id=${made.body.id}`,
    );
    expect(rules.body.network_rules.toSorted((a, b) => (a.cidr < b.cidr ? -1 : 1))).toEqual([
      expect.objectContaining({ cidr: '127.0.0.1/32', source: 'creator_ip', status: 'applied' }),
      expect.objectContaining({ cidr: '203.0.113.9/32', source: 'manual', status: 'applied' }),
    ]);
    const views = readD1(
      "select * from audit_events where name = 'branch.credentials.viewed' and branch_id = ?",
      made.body.id,
    );
    expect(views).toHaveLength(1);
    await create({ branch_name: 'other-pr', labels: { pr: '8' } });
    expect(await namesWith('label=pr%3D7')).toEqual(['complete']);
    expect(await namesWith('label=ref%3Da%3Db&status=active')).toEqual(['complete']);
    expect(await namesWith('label=pr%3D7&status=expired')).toEqual([]);
  });

  test.each([
    ['credentials.owner', '_owner', { one: 1 }],
    ['credentials.read_only', '_ro', { one: 1 }],
  ])('includes with %s the URLs of that login', async (include, login, row) => {
    const made = await create({ branch_name: `with${login}`, include: [include] });
    const { database_url = '', direct_url = '' } = made.body.credentials ?? {};
    for (const url of [database_url, direct_url])
      expect(new URL(url).username).toMatch(new RegExp(`${login}$`));
    expect(await query(database_url, 'select 1 as one')).toEqual([row]);
    const change = query(database_url, 'create table made_by_login (n int)');
    if (include === 'credentials.owner') await change;
    else await expect(change).rejects.toThrow();
  });

  test('is repeated under its key with the credentials, which are not stored', async () => {
    const headers = { ...FROM_LOOPBACK, 'Idempotency-Key': 'keyed' };
    const body = { branch_name: 'keyed', include: ['credentials'] };
    const first = await api.post(path(), body, headers);
    const again = await api.post(path(), body, headers);
    expect(again).toMatchObject({ status: 201, body: first.body });
    const password = new URL((first.body.credentials as Credentials).database_url).password;
    expect(JSON.stringify(readD1('select * from idempotency_keys'))).not.toContain(password);
    expect(JSON.stringify(readD1('select * from jobs'))).not.toContain(password);
  });

  test.each([
    [{ ttl_seconds: 59 }, 'ttl_seconds'],
    [{ ttl_seconds: 60, lifespan: '7d' }, 'ttl_seconds'],
    [{ lifespan: 'custom' }, 'lifespan'],
    [{ lease_seconds: 29 }, 'lease_seconds'],
    [{ lease_seconds: 3601 }, 'lease_seconds'],
    [{ on_exists: 'replace' }, 'on_exists'],
    [{ allow: ['203.0.113.9/24'] }, 'allow.0'],
    [{ allow: Array.from({ length: 17 }, (_, n) => `203.0.113.${n}`) }, 'allow'],
    [{ include: ['passwords'] }, 'include.0'],
    [{ labels: { 'a=b': 'c' } }, 'labels.a=b'],
  ])('with %j is refused', async (choice, field) => {
    const refused = await create({ branch_name: 'refused', ...choice });
    expect(refused).toMatchObject({ status: 422, body: { error: 'VALIDATION_FAILED' } });
    const { details } = refused.body as unknown as { details: { path: string }[] };
    expect(details.map((detail) => detail.path)).toEqual([field]);
  });

  test('with me from an unknown address is refused', async () => {
    const headers = { 'CF-Connecting-IP': CLOUDFLARE_WORKERS_ADDRESS };
    expect(await api.post(path(), { branch_name: 'unknown', allow: ['me'] }, headers)).toMatchObject({
      status: 422,
      body: { details: [{ path: 'allow' }] },
    });
  });

  test('changes a life to seconds', async () => {
    const change = (body: object) => api.patch(`${path()}/keyed`, body);
    expect(await change({ ttl_seconds: 120 })).toMatchObject({
      status: 200,
      body: { lifespan: 'custom', ttl_seconds: 120 },
    });
    expect((await change({})).status).toBe(422);
  });
});

describe('on_exists: return', () => {
  const wanted = { branch_name: 'rerun', on_exists: 'return' };

  test('of twenty parallel calls one creates the branch, and all have the same response', async () => {
    const responses = await Promise.all(Array.from({ length: 20 }, () => create(wanted)));
    expect(responses.map(({ status }) => status).sort()).toEqual([...Array<number>(19).fill(200), 201]);
    expect(new Set(responses.map(({ body }) => JSON.stringify({ ...body, created: null }))).size).toBe(1);
    expect(responses.filter(({ body }) => body.created)).toHaveLength(1);
    expect(await create({ ...wanted, include: ['credentials'] })).toMatchObject({
      status: 200,
      body: { created: false, credentials: { branch_name: 'rerun' } },
    });
  });

  test('never returns a branch of another source', async () => {
    const { body } = await create({ branch_name: 'child', source_branch_id: renewed.id });
    expect(body.status).toBe('active');
    const other = { branch_name: 'child', on_exists: 'return' };
    expect(await create(other)).toMatchObject({ status: 409, body: { error: 'BRANCH_EXISTS' } });
    const same = await create({ ...other, source_branch_id: renewed.id });
    expect(same).toMatchObject({ status: 200, body: { id: body.id, created: false } });
  });
});

const COUNT = IS_NIGHTLY ? 16 : 6;

describe('a batch', () => {
  let busy: ProjectBody;
  let main: Credentials;
  let load: Load;

  beforeAll(async () => {
    busy = await api.project('Busy', { storage_quota_gib: 2 });
    await api.allow(busy.id);
    // By night, the batch exceeds the branch limit.
    const { url, devDir } = inject('stack');
    const platform = new Api(url, gatewaySecrets(devFolder(devDir)).PLATFORM_SECRET);
    const allowance = { leased_branch_limit: COUNT };
    expect((await platform.patch(`/platform/v1/projects/${busy.id}`, allowance)).status).toBe(200);
    main = await api.credentials(busy.id, 'main');
    await fillLedger(main.direct_url, 1);
    load = await Load.start(main.database_url, 4, 5);
    await load.connected;
  });
  afterAll(() => load?.stop());

  const pauses = () => {
    const log = readFileSync(join(devFolder(inject('stack').devDir).logs, 'pgbouncer.log'), 'utf8');
    return log.split('\n').filter((line) => line.includes(`PAUSE '${main.database}' command issued`)).length;
  };

  test(`of ${COUNT} branches pauses a busy main once, and its clients lose no transaction`, async () => {
    const begun = performance.now();
    const before = pauses();
    const wanted = { count: COUNT, name_prefix: 'pr-7-', lease_seconds: 600, include: ['credentials'] };
    const { status, body } = await createBatch(wanted, busy.id);
    expect(status).toBe(201);
    expect(pauses() - before).toBe(1);
    const made = performance.now();
    await eventually(async () => expect(load.since(made).transactions).toBeGreaterThan(4));
    expect(load.since(begun).failures).toEqual([]);
    await load.stop();

    expect(body.branches.map(({ branch_name }) => branch_name)).toEqual(
      Array.from({ length: COUNT }, (_, n) => `pr-7-${n + 1}`),
    );
    const contents = await Promise.all(
      body.branches.map(async ({ credentials }) => {
        const { database_url = '', direct_url = '' } = credentials ?? {};
        expect(await imbalance(direct_url)).toBe(0);
        const [{ rows } = { rows: 0 }] = await query<{ rows: number }>(
          database_url,
          'select count(*)::int as rows from ledger',
        );
        return rows;
      }),
    );
    expect(new Set(contents).size).toBe(1);
    const jobs = await api.get<{ jobs: { kind: string; branch_id: unknown }[] }>(
      `/api/v1/projects/${busy.id}/jobs`,
    );
    expect(jobs.body.jobs.filter(({ kind }) => kind.startsWith('branch.create'))).toEqual([
      expect.objectContaining({ kind: 'branch.create', status: 'succeeded', branch_id: null }),
    ]);
  });

  test('with one name that is taken makes none', async () => {
    const refused = await createBatch({ names: ['free', 'pr-7-3'] }, busy.id);
    expect(refused).toMatchObject({ status: 409, body: { error: 'BRANCH_EXISTS' } });
    expect(readD1("select * from project_branches where branch_name = 'free'")).toEqual([]);
  });

  test.each([
    [{ count: 33, name_prefix: 'x-' }],
    [{ count: 2 }],
    [{ count: 2, name_prefix: 'x', names: ['aaa'] }],
    [{ names: ['aaa', 'aaa'] }],
    [{ names: ['aaa'], name_prefix: 'x-' }],
    [{ count: 1, name_prefix: 'x' }],
    [{ count: 1, name_prefix: 'x'.repeat(48) }],
    [{ names: ['aaa'], on_exists: 'return' }],
    [{}],
  ])('%j is refused', async (body) => {
    expect((await createBatch(body)).status).toBe(422);
  });
});

describe('a lease', () => {
  const isDropped = () =>
    readD1(
      "select * from jobs where branch_id = ? and kind = 'branch.delete' and status = 'succeeded'",
      left.id,
    ).length === 1;

  test('without renewal ends with its branch; a renewed one lives', async () => {
    await sleep(Math.max(0, leaseStart + LEASE_SECONDS * 1000 - Date.now()));
    await eventually(async () => {
      await expect(session.query('select 1')).rejects.toThrow();
      expect(isDropped(), JSON.stringify(readD1('select * from jobs where branch_id = ?', left.id))).toBe(
        true,
      );
    });
    expect((await api.get<{ matches: unknown[] }>(`${path()}/lookup?name=left`)).body.matches).toEqual([]);
    expect((await api.post(`${path()}/${left.id}/lease`, undefined)).status).toBe(404);

    expect((await renew()).body).toMatchObject({
      id: renewed.id,
      status: 'active',
      lease_seconds: LEASE_SECONDS,
    });
    const { database_url } = await api.credentials(project.id, 'renewed');
    expect(await query(database_url, 'select 1 as one')).toEqual([{ one: 1 }]);
    const unleased = await api.post(`${path()}/${project.main_branch.id}/lease`, { lease_seconds: 60 });
    expect(unleased).toMatchObject({ status: 409, body: { error: 'BRANCH_NOT_LEASED' } });
  });
});
