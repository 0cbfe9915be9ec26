import { beforeAll, describe, expect, inject, test } from 'vitest';
import { app } from '../../edge/app.ts';
import { Api, type ProjectBody } from '../support/api.ts';
import { apiOf, ownerOf, readD1, tenantNamed } from '../support/tenants.ts';

interface Place {
  project: ProjectBody;
  branchId: string;
  ruleId: string;
  jobId: string;
}

const UNKNOWN = '00000000-0000-4000-8000-000000000000';
const NOWHERE = {
  project_id: UNKNOWN,
  branch_id: UNKNOWN,
  branch_ref: UNKNOWN,
  rule_id: UNKNOWN,
  job_id: UNKNOWN,
};

/** A body that would be taken, for the routes that need one. */
const BODIES: Record<string, unknown> = {
  'POST /api/v1/projects': { name: 'Not mine' },
  'PATCH /api/v1/projects/:project_id': { name: 'Not mine' },
  'POST /api/v1/projects/:project_id/branches': { branch_name: 'not-mine' },
  'PATCH /api/v1/projects/:project_id/branches/:branch_id': { lifespan: '7d' },
  'POST /api/v1/projects/:project_id/network-rules': { cidr: '203.0.113.0/24' },
};
const QUERIES: Record<string, string> = {
  'GET /api/v1/projects/:project_id/branches/lookup': '?name=main',
};

/** Every route that is registered, so that a new one cannot be forgotten here. */
const ROUTES = [
  ...new Set(
    app.routes
      .filter(({ method, path }) => method !== 'ALL' && path.startsWith('/api/'))
      .map(({ method, path }) => `${method} ${path}`),
  ),
].map((route) => {
  const [method = '', path = ''] = route.split(' ');
  return { route, method, path };
});
const NEEDS_WRITE = ROUTES.filter(({ route, method }) => method !== 'GET' || route.endsWith('/credentials'));
const OF_A_THING = ROUTES.filter(({ path }) => path.includes(':'));

let place: Place;
let names: Record<string, string>;

beforeAll(async () => {
  const api = await ownerOf('acme');
  const project = await api.project('Acme');
  const branch = await api.branch(project.id, 'acme-branch');
  const rule = await api.allow(project.id);
  const { body } = await api.get<{ jobs: { id: string }[] }>(`/api/v1/projects/${project.id}/jobs`);
  place = { project, branchId: branch.id, ruleId: rule.id, jobId: body.jobs[0]?.id ?? '' };
  names = {
    project_id: project.id,
    branch_id: branch.id,
    branch_ref: branch.id,
    rule_id: rule.id,
    job_id: place.jobId,
  };
});

function call(api: Api, { route, method, path }: (typeof ROUTES)[number], ids: Record<string, string>) {
  const filled = path.replaceAll(/:(\w+)/g, (_, name) => ids[name] ?? UNKNOWN) + (QUERIES[route] ?? '');
  return api.call(method, filled, BODIES[route] === undefined ? {} : { body: BODIES[route] });
}

/** How many rows the tenant has on record. */
function written(): number {
  const tables = ['users', 'project_branches', 'projects', 'network_rules', 'jobs', 'audit_events'];
  const counts = tables.map((table) => `(select count(*) from ${table} where tenant_id = ?1)`);
  const [row] = readD1<{ n: number }>(`select ${counts.join(' + ')} as n`, tenantNamed('acme'));
  return row?.n ?? 0;
}

test('the battery knows every route', () => {
  expect(ROUTES.length).toBeGreaterThanOrEqual(16);
  const bodiless = ROUTES.filter(
    ({ method, route }) => (method === 'POST' || method === 'PATCH') && !(route in BODIES),
  );
  expect(bodiless).toEqual([]);
});

describe.each(ROUTES)('$route', (entry) => {
  test.each([
    ['no token', null],
    ['no token but a word', 'Basic YTpi'],
    ['a malformed token', 'v4.public.AAAA'],
    ['a token of another kind', 'eyJhbGciOiJub25lIn0.e30.'],
  ])('%s → 401', async (_, token) => {
    const before = written();
    const answer = await call(new Api(inject('stack').url, token), entry, names);
    expect(answer).toMatchObject({ status: 401, body: { error: 'UNAUTHENTICATED' } });
    expect(answer.headers.get('www-authenticate')).toBe('Bearer error="invalid_token"');
    expect(written()).toBe(before);
  });

  test('an expired token → 401', async () => {
    const api = await apiOf({ tenant: 'acme', expiresIn: -60 });
    expect((await call(api, entry, names)).status).toBe(401);
  });

  test('a token without a tenant → 403', async () => {
    const api = await apiOf({ tenant: null });
    expect(await call(api, entry, names)).toMatchObject({ status: 403, body: { error: 'TENANT_REQUIRED' } });
  });

  test('a role that means nothing here → 403', async () => {
    const api = await apiOf({ tenant: 'acme', role: 'guest' });
    expect(await call(api, entry, names)).toMatchObject({ status: 403, body: { error: 'FORBIDDEN' } });
  });
});

describe.each(NEEDS_WRITE)('$route', (entry) => {
  test.each([
    ['a viewer', { role: 'viewer' }],
    ['the scope to read', { role: 'owner', scope: 'read' }],
  ] as const)('%s → 403 and says what is required', async (_, options) => {
    const api = await apiOf({ tenant: 'acme', ...options });
    const answer = await call(api, entry, names);
    expect(answer).toMatchObject({ status: 403, body: { error: 'FORBIDDEN', required: expect.any(String) } });
  });
});

describe.each(OF_A_THING)('$route', (entry) => {
  test.each([
    ['another tenant', { tenant: 'other', role: 'owner' }],
    ["another user's operator", { tenant: 'acme', role: 'operator', email: 'operator@example.com' }],
  ])('%s gets the answer for an unknown id, to the letter', async (_, options) => {
    const api = await apiOf(options);
    const [foreign, unknown] = await Promise.all([call(api, entry, names), call(api, entry, NOWHERE)]);
    expect(foreign.status).toBe(404);
    const { request_id: one, ...ofForeign } = foreign.body;
    const { request_id: two, ...ofUnknown } = unknown.body;
    expect(one).not.toBe(two);
    expect(ofForeign).toEqual(ofUnknown);
  });
});

test('a thing of one project is unknown under another', async () => {
  const api = await ownerOf('acme');
  const other = await api.project('Other of Acme');
  for (const entry of OF_A_THING.filter(({ path }) => /:(branch|rule)_/.test(path))) {
    expect(await call(api, entry, { ...names, project_id: other.id }), entry.route).toMatchObject({
      status: 404,
    });
  }
});

test('nothing of the tenant was changed by all that', async () => {
  const api = await ownerOf('acme');
  const { body } = await api.get(`/api/v1/projects/${place.project.id}`);
  expect(body).toMatchObject({ name: 'Acme', status: 'active', branch_count: 2 });
  const rules = await api.get<{ network_rules: unknown[] }>(
    `/api/v1/projects/${place.project.id}/network-rules`,
  );
  expect(rules.body.network_rules).toHaveLength(2);
});

describe('requests that cannot be read', () => {
  test('change nothing and say why', async () => {
    const api = await ownerOf('acme');
    const path = `/api/v1/projects/${place.project.id}/branches`;
    expect(await api.call('POST', path, { body: '{"branch_name":' })).toMatchObject({
      status: 400,
      body: { error: 'BAD_REQUEST' },
    });
    expect(
      await api.call('POST', path, { body: `{"branch_name":"${'x'.repeat(1024 * 1024)}"}` }),
    ).toMatchObject({
      status: 413,
      body: { error: 'PAYLOAD_TOO_LARGE' },
    });
    expect(await api.post(path, { branch_name: 'fine', colour: 'red' })).toMatchObject({ status: 422 });
    expect(await api.get(`${path}?colour=red`)).toMatchObject({ status: 422 });
    expect(await api.get('/api/v1/nowhere')).toMatchObject({ status: 404, body: { error: 'NOT_FOUND' } });
    expect((await new Api(inject('stack').url, null).get('/api/v1/nowhere')).status).toBe(401);
  });

  test('every answer names its request, with the name the client gave if it is well-formed', async () => {
    const api = await ownerOf('acme');
    const named = await api.get('/api/v1/nowhere', { headers: { 'X-Request-Id': 'client-chosen-1' } });
    expect(named.headers.get('x-request-id')).toBe('client-chosen-1');
    expect(named.body.request_id).toBe('client-chosen-1');
    const renamed = await api.get('/api/v1/projects', { headers: { 'X-Request-Id': 'no spaces, please' } });
    expect(renamed.headers.get('x-request-id')).toMatch(/^[0-9a-f-]{36}$/);
  });
});
