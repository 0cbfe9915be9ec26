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
/** They are written after the response. */
const untilDenials = (count: number) =>
  eventually(async () => {
    const rows = denials();
    expect(rows.length).toBeGreaterThanOrEqual(count);
    return rows;
  });

const strangerOf = (email: string, role = 'owner') => apiOf({ tenant: 'curious', email, role });
const pathOf = (id: string) => `/api/v1/projects/${id}`;

/** The stranger asks for something else, and when that has been noted, everything before it has been too. */
async function expectNoMoreThan(count: number, stranger: Api): Promise<void> {
  const last = await victim.project('Last');
  await stranger.get(pathOf(last.id));
  const rows = await untilDenials(count + 1);
  expect(rows.filter(({ project_id }) => project_id !== last.id)).toHaveLength(count);
}

beforeAll(async () => {
  victim = await ownerOf('victim');
  projectId = (await victim.project('Wanted')).id;
  otherId = (await victim.project('Wanted too')).id;
});

describe("access to another tenant's project", () => {
  test('is told to that tenant, with all but the e-mail of who asked', async () => {
    const stranger = await strangerOf('eve@curious.example');
    const headers = { ...FROM_LOOPBACK, 'User-Agent': 'curious/1', 'X-Request-Id': 'curious-request' };
    expect((await stranger.get(pathOf(projectId), { headers })).status).toBe(404);
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

  test('is told once an hour for each user and project, whatever is asked for', async () => {
    const stranger = await strangerOf('eve@curious.example');
    const jobs = await victim.get<{ jobs: { id: string }[] }>(`${pathOf(projectId)}/jobs`);
    await stranger.get(`${pathOf(projectId)}/branches`);
    await stranger.patch(pathOf(projectId), { name: 'Mine' });
    await stranger.get(pathOf(projectId.toUpperCase()));
    for (const { id } of jobs.body.jobs) expect((await stranger.get(`/api/v1/jobs/${id}`)).status).toBe(404);
    await (await strangerOf('eve@curious.example', 'operator')).delete(pathOf(projectId));
    await stranger.patch(pathOf(otherId), { name: 'Mine' });
    await (await strangerOf('mallory@curious.example')).get(pathOf(projectId));
    const rows = await untilDenials(3);
    expect(new Set(rows.map(({ actor_id, project_id }) => `${actor_id} ${project_id}`)).size).toBe(3);
    expect(rows.map(({ metadata }) => JSON.parse(metadata).method)).toEqual(['GET', 'PATCH', 'GET']);
    await expectNoMoreThan(3, stranger);
  });

  test('by way of a job is told too', async () => {
    const before = denials().length;
    const stranger = await strangerOf('trudy@curious.example');
    const [job] = readD1<{ id: string }>('select id from jobs where project_id = ?', projectId);
    expect((await stranger.get(`/api/v1/jobs/${job?.id}`)).status).toBe(404);
    expect((await untilDenials(before + 1)).at(-1)).toMatchObject({
      project_id: projectId,
      actor_email: null,
    });
  });
});

test('what is no access to another tenant is not told to anybody', async () => {
  const before = denials().length;
  const colleague = await apiOf({ tenant: 'victim', email: 'bob@victim.example', role: 'operator' });
  expect((await colleague.get(pathOf(projectId))).status).toBe(404);
  const viewer = await strangerOf('trent@curious.example', 'viewer');
  expect((await viewer.delete(pathOf(projectId))).status).toBe(403);
  expect((await viewer.get(pathOf(UNKNOWN))).status).toBe(404);
  await expectNoMoreThan(before, await strangerOf('peggy@curious.example'));
});

test("nothing of it is in the asker's own log", async () => {
  const { body } = await (await strangerOf('eve@curious.example')).get('/api/v1/audit-events?limit=100');
  expect(body).toEqual({ audit_events: [], next_cursor: null });
});
