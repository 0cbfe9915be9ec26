import { beforeAll, describe, expect, test } from 'vitest';
import { type Api, FROM_LOOPBACK } from '../support/api.ts';
import { eventually } from '../support/eventually.ts';
import { apiOf, ownerOf, readD1, tenantNamed } from '../support/tenants.ts';

interface Denial {
  actor_id: string;
  request_id: string;
  project_id: string;
  metadata: string;
  [field: string]: unknown;
}

const UNKNOWN = '00000000-0000-4000-8000-000000000000';

let victim: Api;
let projectId: string;
let otherId: string;

const denials = () =>
  readD1<Denial>(
    "select * from audit_events where name = 'access.denied' and tenant_id = ? order by created_at, rowid",
    tenantNamed('victim'),
  );
/** Waits for the events, which are written after the response. */
const untilDenials = (count: number) =>
  eventually(async () => {
    const rows = denials();
    expect(rows.length).toBeGreaterThanOrEqual(count);
    return rows;
  });

const intruderOf = (email: string, role = 'owner') => apiOf({ tenant: 'curious', email, role });
const pathOf = (id: string) => `/api/v1/projects/${id}`;

/** Denials are recorded in order: once a further one is recorded, all earlier ones are too. */
async function expectNoMoreThan(count: number, intruder: Api): Promise<void> {
  const last = await victim.project('Last');
  await intruder.get(pathOf(last.id));
  const rows = await untilDenials(count + 1);
  expect(rows.filter(({ project_id }) => project_id !== last.id)).toHaveLength(count);
}

beforeAll(async () => {
  victim = await ownerOf('victim');
  projectId = (await victim.project('Wanted')).id;
  otherId = (await victim.project('Wanted too')).id;
});

describe("access to another tenant's project", () => {
  test("is audited in that tenant, without the caller's e-mail", async () => {
    const intruder = await intruderOf('eve@curious.example');
    const headers = { ...FROM_LOOPBACK, 'User-Agent': 'curious/1', 'X-Request-Id': 'curious-request' };
    expect((await intruder.get(pathOf(projectId), { headers })).status).toBe(404);
    const [denial] = await untilDenials(1);
    const [user] = readD1<{ id: string }>("select id from users where email = 'eve@curious.example'");
    expect(denial).toMatchObject({
      actor_id: user?.id,
      actor_email: null,
      tenant_id: tenantNamed('victim'),
      project_id: projectId,
      branch_id: null,
      ip: '127.0.0.1',
      user_agent: 'curious/1',
      request_id: 'curious-request',
      metadata: '{"method":"GET"}',
    });
    const { body } = await victim.get<{ audit_events: Denial[] }>('/api/v1/audit-events?name=access.denied');
    expect(body.audit_events).toEqual([
      expect.objectContaining({ actor_id: user?.id, actor_email: null, metadata: { method: 'GET' } }),
    ]);
    expect(JSON.stringify(body)).not.toContain('eve@');
  });

  test('is audited once an hour for each user and project, whatever the request', async () => {
    const intruder = await intruderOf('eve@curious.example');
    const jobs = await victim.get<{ jobs: { id: string }[] }>(`${pathOf(projectId)}/jobs`);
    await intruder.get(`${pathOf(projectId)}/branches`);
    await intruder.patch(pathOf(projectId), { name: 'Mine' });
    await intruder.get(pathOf(projectId.toUpperCase()));
    for (const { id } of jobs.body.jobs) expect((await intruder.get(`/api/v1/jobs/${id}`)).status).toBe(404);
    await (await intruderOf('eve@curious.example', 'operator')).delete(pathOf(projectId));
    await intruder.patch(pathOf(otherId), { name: 'Mine' });
    await (await intruderOf('mallory@curious.example')).get(pathOf(projectId));
    const rows = await untilDenials(3);
    expect(new Set(rows.map(({ actor_id, project_id }) => `${actor_id} ${project_id}`)).size).toBe(3);
    expect(rows.map(({ metadata }) => JSON.parse(metadata).method)).toEqual(['GET', 'PATCH', 'GET']);
    await expectNoMoreThan(3, intruder);
  });

  test('through a job is audited too', async () => {
    const before = denials().length;
    const intruder = await intruderOf('trudy@curious.example');
    const [job] = readD1<{ id: string }>('select id from jobs where project_id = ?', projectId);
    expect((await intruder.get(`/api/v1/jobs/${job?.id}`)).status).toBe(404);
    expect((await untilDenials(before + 1)).at(-1)).toMatchObject({
      project_id: projectId,
      actor_email: null,
    });
  });
});

test('a refusal within a tenant, or for an unknown project, is not audited', async () => {
  const before = denials().length;
  const colleague = await apiOf({ tenant: 'victim', email: 'bob@victim.example', role: 'operator' });
  expect((await colleague.get(pathOf(projectId))).status).toBe(404);
  const viewer = await intruderOf('trent@curious.example', 'viewer');
  expect((await viewer.delete(pathOf(projectId))).status).toBe(403);
  expect((await viewer.get(pathOf(UNKNOWN))).status).toBe(404);
  await expectNoMoreThan(before, await intruderOf('peggy@curious.example'));
});

test("denied access is not in the caller's own log", async () => {
  const { body } = await (await intruderOf('eve@curious.example')).get('/api/v1/audit-events?limit=100');
  expect(body).toEqual({ audit_events: [], next_cursor: null });
});
