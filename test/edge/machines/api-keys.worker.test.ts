import { eq } from 'drizzle-orm';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { apiKeys } from '../../../edge/database/people-schema.ts';
import { auditEvents, organizationMembers, projectBranches, users } from '../../../edge/database/schema.ts';
import { CACHED_MS, machineRecord } from '../../../edge/machines/authenticate-machine.ts';
import { matchesPattern, whereMatches } from '../../../edge/tenancy/branch-pattern.ts';
import { CLOUDFLARE_WORKERS_ADDRESS } from '../../../shared/cidr.ts';
import { Api, forgedAddress } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import {
  callOperation,
  type Ids,
  OPERATIONS,
  type Operation,
  PLATFORM_OPERATIONS,
  PRE_AUTH_OPERATIONS,
  SIGNED_IN_OPERATIONS,
  USER_OPERATIONS,
} from '../../support/operations.ts';
import { openEvents } from '../../support/worker/event-client.ts';
import { startTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';

const WRITES = 600;
const UNKNOWN = '00000000-0000-4000-8000-000000000000';
const KEY = { name: 'CI', role: 'admin', scopes: ['branchgate:write'], expires_in_days: 1 };

let gateway: TripsGateway;
/** Of a project with the branches `main`, `made` and `pr-1`. */
let ids: Ids;
let pr: { id: string; rule: string; job: string };
let key: { id: string; key: string };
/** Limited to `pr-*`. */
let machine: Api;

const makeKey = async (more: Record<string, unknown> = {}, maker = gateway.api) => {
  const { status, body } = await maker.post<{ id: string; key: string }>('/api/v1/api-keys', {
    ...KEY,
    ...more,
  });
  expect(status, JSON.stringify(body)).toBe(201);
  return body;
};
const withKey = ({ key }: { key: string }) => new Api(gateway.url, key);
const path = (rest = '') => `/api/v1/projects/${ids.project_id}${rest}`;

beforeAll(async () => {
  gateway = await startTripsGateway(0, { LIMIT_WRITES_PER_MINUTE: String(WRITES) });
  ids = await gateway.makeThings();
  key = await makeKey({ branch_pattern: 'pr-*' });
  machine = withKey(key);
  const { id } = await machine.branch(ids.project_id ?? '', 'pr-1', { lease_seconds: 3600 });
  const { id: rule } = await machine.allow(ids.project_id ?? '', '203.0.113.7/32', id);
  const { body } = await machine.get<{ jobs: { id: string; branch_id: string }[] }>(path('/jobs'));
  pr = { id, rule, job: body.jobs[0]?.id ?? '' };
});
afterAll(() => gateway?.stop());

/** The operations that a key limited to branches may use, each limited to what matches. */
const OF_BRANCHES = new Set([
  ...[
    'createBranch',
    'createBranches',
    'renewLease',
    'listBranches',
    'lookUpBranch',
    'updateBranch',
    'deleteBranch',
    'getMe',
  ],
  ...['getCredentials', 'rotateCredentials', 'listTables', 'listRows', 'updateRow', 'deleteRows'],
  ...['describeTable', 'changeRows', 'runQuery'],
  ...[
    'createNetworkRule',
    'listNamedNetworks',
    'listNetworkRules',
    'updateNetworkRule',
    'deleteNetworkRule',
    'listJobs',
    'getJob',
  ],
  'countSessions',
  ...['getMetricsSummary', 'getMetrics', 'streamBranchMetrics', 'streamEvents'],
  ...['listSnapshots', 'listProjectSnapshots'],
]);

const createBatch = (body: Record<string, unknown>, caller = machine) =>
  caller.post(path('/branches/batch'), body);

const without = (text: string, ...hidden: (string | undefined)[]) => {
  for (const name of hidden) expect(text).not.toContain(name);
};

describe('a key bound to pr-*', () => {
  const operations = [...USER_OPERATIONS, ...SIGNED_IN_OPERATIONS];

  test('covers every operation that takes an access token', () => {
    expect(operations.length).toBeGreaterThan(30);
    for (const id of OF_BRANCHES) expect(operations.map((one) => one.id)).toContain(id);
  });

  test.each(operations.filter(({ id }) => !OF_BRANCHES.has(id)))('cannot use $id', async (operation) => {
    const response = await callOperation(machine, operation, ids);
    expect(response).toMatchObject({ status: 404, body: { error: 'NOT_FOUND' } });
  });

  test.each([...PLATFORM_OPERATIONS, ...PRE_AUTH_OPERATIONS])(
    'is no credential for $id',
    async (operation) => {
      const response = await callOperation(machine, operation, {
        ...ids,
        host_id: UNKNOWN,
        tenant_id: 'acme',
      });
      expect(response).toMatchObject({ status: 401, body: { error: 'UNAUTHENTICATED' } });
    },
  );

  /** A resource of another branch, of main, and one that does not exist, by name and by ID. */
  const others = (operation: Operation): Ids[] =>
    operation.ids.includes('branch_ref')
      ? [ids.branch_id, 'made', 'main', 'no-such-branch', UNKNOWN].map((branch_ref = '') => ({
          ...ids,
          branch_ref,
        }))
      : [ids, { ...ids, rule_id: UNKNOWN, job_id: UNKNOWN }];
  const ofOthers = operations.filter(
    ({ id, ids: names }) =>
      OF_BRANCHES.has(id) && ['branch_ref', 'rule_id', 'job_id'].some((name) => names.includes(name)),
  );

  test.each(ofOthers)('knows nothing but its branches in $id', async (operation) => {
    const texts = new Set<string>();
    for (const other of others(operation)) {
      const { status, body } = await callOperation(machine, operation, other);
      expect(status).toBe(404);
      // The response repeats the reference that the client has sent.
      const text = JSON.stringify({ ...body, request_id: '' });
      texts.add(text.replaceAll(` ${other.branch_ref} `, ' it '));
    }
    expect(texts.size).toBe(1);
  });

  test('cannot create or clone other branches', async () => {
    const create = (body: Record<string, unknown>) => machine.post(path('/branches'), body);
    for (const branch_name of ['made', 'free', 'xpr-1', 'pr_1']) {
      expect(await create({ branch_name }), branch_name).toMatchObject({
        status: 404,
        body: { message: expect.stringContaining('pr-*') },
      });
    }
    for (const source_branch_id of [ids.branch_id, UNKNOWN]) {
      expect((await create({ branch_name: 'pr-2', source_branch_id })).status).toBe(404);
      expect((await createBatch({ names: ['pr-2'], source_branch_id })).status).toBe(404);
    }
    expect((await create({ branch_name: 'made', on_exists: 'return' })).status).toBe(404);
    for (const names of [{ names: ['pr-2', 'made'] }, { count: 1, name_prefix: 'pr' }]) {
      expect(await createBatch(names), JSON.stringify(names)).toMatchObject({
        status: 404,
        body: { message: expect.stringContaining('pr-*') },
      });
    }
  });

  test('creates batches of branches that match, and follows the jobs of these only', async () => {
    const before = (await machine.get(path('/branches'))).body;
    const made = await createBatch({ count: 2, name_prefix: 'pr-b-', include: ['credentials'] });
    const { branches } = made.body as { branches: { id: string; branch_name: string }[] };
    expect(branches.map(({ branch_name }) => branch_name)).toEqual(['pr-b-1', 'pr-b-2']);
    expect(branches).toMatchObject([{ credentials: {} }, { credentials: {} }]);
    const ofLogin = async (prefix: string, include: string[]) => {
      const { status, body } = await createBatch({ count: 1, name_prefix: prefix, include });
      const [branch] = (body as { branches?: { credentials?: Record<string, string> }[] }).branches ?? [];
      const logins = ['database_url', 'direct_url'].map(
        (name) => /_([a-z]+):/.exec(branch?.credentials?.[name] ?? '')?.[1],
      );
      if (branch) await machine.delete(path(`/branches/${prefix}1`));
      return [status, ...logins];
    };
    expect(await ofLogin('pr-p-', ['credentials'])).toEqual([201, 'rw', 'owner']);
    expect(await ofLogin('pr-s-', ['credentials', 'credentials.owner'])).toEqual([422, undefined, undefined]);
    if (IS_NIGHTLY) {
      expect(await ofLogin('pr-q-', ['credentials.owner'])).toEqual([201, 'owner', 'owner']);
      expect(await ofLogin('pr-r-', ['credentials.read_only'])).toEqual([201, 'ro', 'ro']);
      expect(await ofLogin('pr-s-', [])).toEqual([201, undefined, undefined]);
    }

    const jobOf = async (caller: Api, names: string[]) => {
      const { status } = await createBatch({ names }, caller);
      expect(status).toBe(201);
      const { body } = await gateway.api.get<{ jobs: { id: string }[] }>(path('/jobs'));
      return body.jobs[0]?.id;
    };
    const canFollow = async (job: string | undefined) =>
      (await machine.get(`/api/v1/jobs/${job}`)).status === 200;
    expect(await canFollow(await jobOf(machine, ['pr-b-3']))).toBe(true);
    expect(await canFollow(await jobOf(gateway.api, ['pr-b-4', 'pr-b-5']))).toBe(true);
    const mixed = await jobOf(gateway.api, ['pr-b-6', 'free']);
    expect(await canFollow(mixed)).toBe(false);
    without(JSON.stringify((await machine.get(path('/jobs'))).body), mixed);

    for (const name of [1, 2, 3, 4, 5, 6].map((number) => `pr-b-${number}`))
      expect((await machine.delete(path(`/branches/${name}`))).status).toBe(202);
    expect((await gateway.api.delete(path('/branches/free'))).status).toBe(202);
    expect((await machine.get(path('/branches'))).body).toEqual(before);
  });

  test('does not learn labels of other branches by a filter', async () => {
    await gateway.api.branch(ids.project_id ?? '', 'labelled', { labels: { team: 'x' } });
    const list = path('/branches?label=team%3Dx');
    expect((await gateway.api.get(list)).body.branches).toHaveLength(1);
    expect((await machine.get(list)).body.branches).toEqual([]);
  });

  test('cannot create rules of the project or of other branches', async () => {
    for (const branch_id of [null, ids.branch_id, UNKNOWN]) {
      expect(
        (await machine.post(path('/network-rules'), { cidr: '198.51.100.1/32', branch_id })).status,
      ).toBe(404);
    }
  });

  test('lists its branches and the record of main, and nothing of other branches', async () => {
    const names = (body: { branches?: unknown; matches?: unknown }) =>
      ((body.branches ?? body.matches) as { branch_name: string }[]).map(({ branch_name }) => branch_name);
    expect(names((await machine.get(path('/branches'))).body)).toEqual(['main', 'pr-1']);
    const found = async (query: string) => names((await machine.get(path(`/branches/lookup?${query}`))).body);
    expect(await found('name=main')).toEqual(['main']);
    expect(await found('name=made')).toEqual([]);
    expect(await found(`id=${ids.branch_id}`)).toEqual([]);
    for (const list of ['/branches', '/network-rules', '/jobs']) {
      const text = JSON.stringify((await machine.get(path(list))).body);
      expect(text).toContain(pr.id);
      without(text, 'made', ids.branch_id, ids.rule_id);
    }
  });

  test('gets the events of its branches, and none of others, of main or of the project', async () => {
    const open = (token: string, after?: string) =>
      openEvents({ url: gateway.url, token }, ids.project_id ?? '', after);
    const all = await open(gateway.token, '0');
    const limited = await open(key.key, '0');
    const bound = await makeKey({ branch_pattern: 'pr-e-*', project_id: ids.project_id });
    const matching = await open(bound.key);
    const made = await gateway.api.branch(ids.project_id ?? '', 'pr-e-1');
    const other = await gateway.api.branch(ids.project_id ?? '', 'events-of-others');
    const rule = await gateway.api.allow(ids.project_id ?? '', '203.0.113.99/32');
    await createBatch({ names: ['pr-e-2', 'free-e'] }, gateway.api);
    for (const { id } of [other, made]) await gateway.api.delete(path(`/branches/${id}`));
    for (const name of ['pr-e-2', 'free-e']) await gateway.api.delete(path(`/branches/${name}`));
    const last = await eventually(async () => {
      const names = all.changes().map(({ data }) => `${data.data.branch_name} ${data.data.status}`);
      expect(names).toContain('free-e deleted');
      expect(matching.statuses('branch.changed').filter((status) => status === 'deleted')).toHaveLength(2);
      return all.lastId();
    });
    await eventually(async () => expect(all.lastId()).toBe(last));

    const about = (events: typeof all, field: string) =>
      new Set(events.changes().map(({ data }) => data.data[field]));
    expect(about(matching, 'branch_name')).toEqual(new Set(['pr-e-1', 'pr-e-2', undefined]));
    expect([...about(limited, 'branch_name')]).toEqual(expect.arrayContaining(['pr-1', 'pr-e-1', 'pr-e-2']));
    const hidden = [
      'made',
      'main',
      'events-of-others',
      'free-e',
      other.id,
      rule.id,
      ids.branch_id,
      ids.rule_id,
    ];
    for (const stream of [limited, matching]) {
      expect(new Set(stream.changes().map(({ event }) => event))).toEqual(
        new Set(['branch.changed', 'network_rule.changed', 'job.changed']),
      );
      const text = JSON.stringify(stream.changes());
      without(text, ...hidden);
      for (const name of hidden) expect(JSON.stringify(all.changes())).toContain(name);
      // Each event once and in order, as the whole log has it.
      const seen = new Set(stream.changes().map(({ id }) => id));
      expect(stream.changes()).toEqual(all.changes().filter(({ id }) => seen.has(id)));
    }
    // The batch of a branch that matches and one that does not is no job of this key.
    const batches = limited
      .changes()
      .filter(({ data }) => data.data.kind === 'branch.create' && data.data.branch_id === null);
    expect(batches.length).toBeGreaterThan(0);
    for (const { data } of batches)
      expect((await machine.get(`/api/v1/jobs/${data.data.job_id}`)).status).toBe(200);
  });

  test('can use its branch in every operation, by name and by ID', async () => {
    const own = { ...ids, rule_id: pr.rule, job_id: pr.job };
    const usable = OPERATIONS.filter(
      ({ id, ids: names }) => OF_BRANCHES.has(id) && names.includes('branch_ref'),
    );
    const order = ['GET', 'POST', 'PATCH', 'DELETE'];
    for (const operation of usable.toSorted((a, b) => order.indexOf(a.method) - order.indexOf(b.method))) {
      // The host of this gateway has no rows to change.
      if (['updateRow', 'deleteRows', 'changeRows', 'runQuery'].includes(operation.id)) continue;
      for (const [branch_ref, name] of [
        [pr.id, 'pr-1'],
        ['pr-1', 'pr-1'],
      ] as const) {
        if (operation.method === 'DELETE' && branch_ref === pr.id) continue;
        const { status, body } = await callOperation(machine, operation, { ...own, branch_ref });
        expect([200, 202], `${operation.id} of ${name}: ${JSON.stringify(body)}`).toContain(status);
        without(JSON.stringify(body), 'made', ids.branch_id);
      }
    }
    // The branch is deleted; its job can still be followed.
    expect((await machine.get(`/api/v1/jobs/${pr.job}`)).status).toBe(200);
  });
});

describe('the user in whose name a key acts', () => {
  /** The status of a read of the audit log with a key that no isolate has cached. */
  async function statusAfter(change: (db: TripsGateway['db']) => Promise<unknown>): Promise<number> {
    const { db } = gateway;
    const made = await makeKey();
    const members = await db.select().from(organizationMembers);
    await change(db);
    try {
      return (await withKey(made).get('/api/v1/audit-events')).status;
    } finally {
      await db.delete(organizationMembers);
      await db.insert(organizationMembers).values(members);
      await db.update(users).set({ tenantId: 'acme' });
    }
  }

  test.each<[string, number, (db: TripsGateway['db']) => Promise<unknown>]>([
    ['is as before', 200, async () => {}],
    ['has a lower role', 403, (db) => db.update(organizationMembers).set({ role: 'operator' })],
    ['has an unknown role', 403, (db) => db.update(organizationMembers).set({ role: 'guest' })],
    ['was removed from the tenant', 401, (db) => db.delete(organizationMembers)],
    ['has moved to another tenant', 401, (db) => db.update(users).set({ tenantId: 'other' })],
  ])('%s', async (_, status, change) => {
    expect(await statusAfter(change)).toBe(status);
  });

  test('cannot create a key above its role', async () => {
    const admin = new Api(gateway.url, await gateway.tokenOf({ gid: 'admin', role: 'admin' }));
    await makeKey({ role: 'operator' }, admin);
    const above = await admin.post('/api/v1/api-keys', { ...KEY, role: 'owner' });
    expect(above).toMatchObject({ status: 403, body: { required: 'role owner' } });
  });
});

test('a deleted key counts for as long as an isolate caches it, and no longer', async () => {
  const { id } = await makeKey();
  const now = Date.now();
  const read = (afterMs: number) =>
    machineRecord(gateway.database, { type: 'key', id }, new Date(now + afterMs));
  expect(await read(0)).toMatchObject({ id });
  expect((await gateway.api.delete(`/api/v1/api-keys/${id}`)).status).toBe(204);
  expect(await read(CACHED_MS - 1)).toMatchObject({ id });
  expect(await read(CACHED_MS)).toBeNull();
});

test('only people manage keys and webhooks, and only owners and admins', async () => {
  const admin = withKey(await makeKey());
  const call = (operation: Operation) => callOperation(admin, operation, ids);
  for (const operation of OPERATIONS.filter(({ action }) => /^(?:machines|webhooks)\./.test(action ?? ''))) {
    expect(await call(operation), operation.id).toMatchObject({
      status: 403,
      body: { error: 'FORBIDDEN', required: 'a user' },
    });
  }
});

test('a key bound to a project knows no other project', async () => {
  const other = await gateway.api.project('Elsewhere');
  const bound = withKey(await makeKey({ project_id: ids.project_id, role: 'operator' }));
  expect((await bound.get(path())).status).toBe(200);
  expect((await bound.get(`/api/v1/projects/${other.id}`)).status).toBe(404);
  const listed = await bound.get<{ projects: { id: string }[] }>('/api/v1/projects');
  expect(listed.body.projects.map(({ id }) => id)).toEqual([ids.project_id]);
  expect((await bound.get(`${path('/events')}?seconds=0`)).status).toBe(200);
  expect((await bound.get(`/api/v1/projects/${other.id}/events?seconds=0`)).status).toBe(404);
  const denied = await gateway.api.post('/api/v1/api-keys', { ...KEY, project_id: UNKNOWN });
  expect(denied.status).toBe(404);
  expect(await bound.post('/api/v1/projects', { name: 'Another', storage_quota_gib: 1 })).toMatchObject({
    status: 403,
    body: { required: 'a credential for all projects' },
  });
});

test('a key is refused outside its networks, with the address in the message', async () => {
  const { key: bearer } = await makeKey({ cidrs: ['203.0.113.0/24'] });
  const from = (address: string, token = bearer) =>
    new Api(gateway.url, token).get('/api/v1/projects', { headers: { 'CF-Connecting-IP': address } });
  expect((await from('203.0.113.9')).status).toBe(200);
  expect(await from('198.51.100.9')).toMatchObject({
    status: 403,
    body: { error: 'FORBIDDEN', message: expect.stringContaining('198.51.100.9') },
  });
  const forging = { ...forgedAddress('203.0.113.9'), 'CF-Connecting-IP': '198.51.100.9' };
  const forged = await new Api(gateway.url, bearer).get('/api/v1/projects', { headers: forging });
  expect(forged).toMatchObject({
    status: 403,
    body: { message: expect.stringContaining('198.51.100.9') },
  });
});

test('a key with networks is refused from the address that all Cloudflare Workers share', async () => {
  const headers = { 'CF-Connecting-IP': CLOUDFLARE_WORKERS_ADDRESS };
  const statusOf = async (cidrs: string[] | null) => {
    const { key: bearer } = await makeKey({ cidrs });
    return (await new Api(gateway.url, bearer).get('/api/v1/projects', { headers })).status;
  };
  expect(await statusOf([`${CLOUDFLARE_WORKERS_ADDRESS}/128`])).toBe(403);
  expect(await statusOf(['::/0', '0.0.0.0/0'])).toBe(403);
  expect(await statusOf(null)).toBe(200);
});

test('a wrong, an expired and an unknown key are refused', async () => {
  const { id, key: bearer } = await makeKey();
  const status = async (token: string) => (await new Api(gateway.url, token).get('/api/v1/me')).status;
  expect(await status(`${bearer.slice(0, -1)}${bearer.endsWith('0') ? '1' : '0'}`)).toBe(401);
  const { key: otherBearer } = await makeKey();
  // The secret of another key under this ID fails by its checksum; recomputed, by its hash.
  expect(await status(bearer.slice(0, 20) + otherBearer.slice(20))).toBe(401);
  await gateway.db
    .update(apiKeys)
    .set({ expiresAt: new Date(0) })
    .where(eq(apiKeys.id, id));
  expect(await status(bearer)).toBe(401);
  const deleted = await makeKey();
  expect((await gateway.api.delete(`/api/v1/api-keys/${deleted.id}`)).status).toBe(204);
  expect(await status(deleted.key)).toBe(401);
});

test('D1 has no secret, the last use, and the key as the author of what it did', async () => {
  const secret = key.key.slice(20);
  const rows = await eventually(async () => {
    const found = await gateway.db.select().from(apiKeys);
    expect(found.find(({ id }) => id === key.id)?.lastUsedAt).toBeInstanceOf(Date);
    return found;
  });
  const events = await gateway.db.select().from(auditEvents);
  const text = JSON.stringify([rows, events]);
  expect(text).not.toContain(secret.slice(0, 20));
  const created = events.filter(({ name, actorType }) => name === 'branch.created' && actorType === 'key');
  expect(created.length).toBeGreaterThan(0);
  for (const event of created) expect(event).toMatchObject({ actorId: key.id, actorEmail: null });
  expect(events.filter(({ name }) => name === 'api_key.created')[0]).toMatchObject({ actorType: 'user' });
});

test('a pattern means the same in D1 and in the gateway', async () => {
  const { branch_name } = await gateway.api.branch(ids.project_id ?? '', 'a-name_with-parts');
  const alphabet = fc.constantFrom('a', '-', 'name', '_', 's', 'a-name', 'parts', '*');
  const patterns = fc.array(alphabet, { minLength: 1, maxLength: 4 }).map((parts) => parts.join(''));
  const checked = fc.asyncProperty(
    patterns.filter((text) => text.split('*').length < 3),
    async (pattern) => {
      const rows = await gateway.db
        .select()
        .from(projectBranches)
        .where(whereMatches(pattern, projectBranches.branchName));
      const isFound = rows.some((row) => row.branchName === branch_name);
      const form = new RegExp(`^${pattern.replace('*', '.*')}$`);
      expect([matchesPattern(pattern, branch_name), isFound]).toEqual([
        form.test(branch_name),
        form.test(branch_name),
      ]);
    },
  );
  await fc.assert(checked, { numRuns: 60 });
});

test('a machine over its own limit uses up nothing more of its tenant', async () => {
  const runaway = withKey(await makeKey());
  const remaining = async () => {
    const { headers } = await gateway.api.post('/api/v1/api-keys', {});
    return Number(headers.get('x-ratelimit-remaining'));
  };
  const before = await remaining();
  const statuses = new Map<number, number>();
  for (let n = 0; n < WRITES / 2 + 50; n += 1) {
    const { status } = await runaway.post('/api/v1/projects', {});
    statuses.set(status, (statuses.get(status) ?? 0) + 1);
  }
  expect(Object.fromEntries(statuses)).toEqual({ 422: WRITES / 2, 429: 50 });
  expect(await remaining()).toBeGreaterThanOrEqual(before - WRITES / 2 - 1);
});
