import { eq } from 'drizzle-orm';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { hosts, projects } from '../../../edge/database/schema.ts';
import { startTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';

let gateway: TripsGateway;

beforeAll(async () => {
  gateway = await startTripsGateway(0);
});
afterAll(() => gateway?.stop());

const setCaps = (tenant: string, caps: Record<string, unknown>) =>
  gateway.platform.call('PUT', `/platform/v1/tenants/${tenant}/caps`, { body: caps });

test('caps that the platform sets apply to creations and to raised quotas', async () => {
  const { id } = await gateway.api.project('Shop', { storage_quota_gib: 1 });
  const change = (storage_quota_gib: number) =>
    gateway.api.patch(`/api/v1/projects/${id}`, { storage_quota_gib });
  expect(await setCaps('acme', { project_limit: 2, storage_quota_limit_gib: 1.5 })).toMatchObject({
    status: 200,
    body: { tenant_id: 'acme', project_limit: 2, project_count: 1, storage_quota_gib: 1 },
  });
  expect(await change(1.6)).toMatchObject({
    status: 429,
    body: { error: 'TENANT_QUOTA_REACHED', limit: 1.5, current: 0, retry_after: null },
  });
  expect(await change(1.5)).toMatchObject({ status: 200, body: { storage_quota_gib: 1.5 } });
  const other = { name: 'Other', storage_quota_gib: 0.25 };
  expect(await gateway.api.post('/api/v1/projects', other)).toMatchObject({
    status: 429,
    body: { error: 'TENANT_QUOTA_REACHED', limit: 1.5, current: 1.5 },
  });
  expect((await setCaps('acme', { project_limit: 1, storage_quota_limit_gib: 1 })).status).toBe(200);
  expect(await gateway.api.post('/api/v1/projects', other)).toMatchObject({
    status: 429,
    body: { error: 'PROJECT_LIMIT_REACHED', limit: 1, current: 1, retry_after: null },
  });
  // A quota above the limit can be lowered, but not raised.
  expect(await change(1.2)).toMatchObject({ status: 200, body: { storage_quota_gib: 1.2 } });
  expect((await change(1.3)).status).toBe(429);
  const { body } = await gateway.api.get<{ audit_events: { metadata: unknown }[] }>(
    '/api/v1/audit-events?name=tenant.caps.changed',
  );
  expect(body.audit_events).toHaveLength(2);
});

test('a host promises no more than its free disk', async () => {
  const GIB = 2 ** 30;
  const free = (bytes: number | null) => gateway.db.update(hosts).set({ freeBytes: bytes });
  expect((await setCaps('acme', { project_limit: 100, storage_quota_limit_gib: 100 })).status).toBe(200);
  const promised = await gateway.db.select().from(projects);
  const promisedGib = promised.reduce((sum, { storageQuotaGib }) => sum + storageQuotaGib, 0);
  await free((promisedGib + 1) * GIB);
  const create = (storage_quota_gib: number) =>
    gateway.api.post<{ id: string }>('/api/v1/projects', { name: 'Roomy', storage_quota_gib });
  expect(await create(1.01)).toMatchObject({ status: 503, body: { error: 'HOST_FULL' } });
  const made = await create(0.5);
  expect(made.status).toBe(201);
  const change = (storage_quota_gib: number) =>
    gateway.api.patch(`/api/v1/projects/${made.body.id}`, { storage_quota_gib });
  expect(await change(1.01)).toMatchObject({ status: 503, body: { error: 'HOST_FULL' } });
  expect((await change(1)).status).toBe(200);
  // Used bytes are no longer free, and no longer promised.
  const used = { storageUsedBytes: 0.75 * GIB };
  await gateway.db.update(projects).set(used).where(eq(projects.id, made.body.id));
  await free((promisedGib + 0.25) * GIB);
  expect((await create(0.25)).status).toBe(503);
  await free(0);
  expect((await change(0.9)).status).toBe(200);
  await free(null);
  expect((await create(5)).status).toBe(201);
});

test('a project is placed in the region that it names, while a host of it has a place', async () => {
  expect((await setCaps('acme', { project_limit: 100, storage_quota_limit_gib: 100 })).status).toBe(200);
  const { body } = await gateway.platform.call<{ hosts: [{ id: string; project_count: number }] }>(
    'GET',
    '/platform/v1/hosts',
  );
  const [{ id, project_count: count }] = body.hosts;
  const place = (change: object) =>
    gateway.platform.call('PATCH', `/platform/v1/hosts/${id}`, { body: change });
  const regions = async () => (await gateway.api.get('/api/v1/regions')).body;
  const create = (region?: string) =>
    gateway.api.post('/api/v1/projects', { name: 'Placed', storage_quota_gib: 0.1, region });
  expect(await regions()).toEqual({ regions: [] });
  expect(await place({ region: 'eu-central', capacity: count + 1 })).toMatchObject({
    status: 200,
    body: { region: 'eu-central', capacity: count + 1 },
  });
  expect(await regions()).toEqual({ regions: [{ name: 'eu-central', accepts_projects: true }] });
  expect(await create('us-east')).toMatchObject({
    status: 422,
    body: { error: 'VALIDATION_FAILED', details: [{ path: 'region' }] },
  });
  expect(await create('eu-central')).toMatchObject({ status: 201, body: { region: 'eu-central' } });
  expect(await regions()).toEqual({ regions: [{ name: 'eu-central', accepts_projects: false }] });
  for (const region of ['eu-central', undefined])
    expect(await create(region)).toMatchObject({ status: 503, body: { error: 'HOST_FULL' } });
  await place({ capacity: null, draining: true });
  expect(await create('eu-central')).toMatchObject({ status: 503, body: { error: 'HOST_UNAVAILABLE' } });
  await place({ region: null, draining: false });
  expect((await create()).status).toBe(201);
});

test.each([{ project_limit: -1 }, { project_limit: 1.5 }, { storage_quota_limit_gib: 'x' }, { cap: 1 }])(
  'the caps %j are refused',
  async (caps) => {
    expect((await setCaps('acme', caps)).status).toBe(422);
  },
);

test('caps of an unknown tenant are not found', async () => {
  expect((await setCaps('nobody', { project_limit: 1 })).status).toBe(404);
});

test('a project that is being deleted can be neither changed nor deleted again', async () => {
  expect((await setCaps('acme', { project_limit: 9, storage_quota_limit_gib: 9 })).status).toBe(200);
  const { id } = await gateway.api.project('Ending', { storage_quota_gib: 0.25 });
  // The deletion does not end.
  await gateway.plantFailure(id, 'project.drop', { code: 'HOST_UNAVAILABLE', message: 'It is away.' });
  expect((await gateway.api.delete(`/api/v1/projects/${id}`)).status).toBe(202);
  const refused = { status: 409, body: { error: 'PROJECT_NOT_ACTIVE' } };
  expect(await gateway.api.delete(`/api/v1/projects/${id}`)).toMatchObject(refused);
  for (const change of [{ name: 'Renamed' }, { storage_quota_gib: 0.5 }])
    expect(await gateway.api.patch(`/api/v1/projects/${id}`, change)).toMatchObject(refused);
  expect(await gateway.api.get(`/api/v1/projects/${id}`)).toMatchObject({
    status: 200,
    body: { status: 'deleting', name: 'Ending', storage_quota_gib: 0.25 },
  });
});
