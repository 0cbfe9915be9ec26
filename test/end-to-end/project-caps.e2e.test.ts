import { beforeAll, expect, inject, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api, type ProjectBody } from '../support/api.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { ownerOf } from '../support/tenants.ts';

interface AuditEvent {
  name: string;
  metadata: Record<string, unknown>;
}

const UNKNOWN = '00000000-0000-4000-8000-000000000000';

let platform: Api;
let owner: Api;

beforeAll(async () => {
  const { url, devDir } = inject('stack');
  platform = new Api(url, gatewaySecrets(devFolder(devDir)).PLATFORM_SECRET);
  owner = await ownerOf('project-caps');
});

/** Caps in an audit event. */
const caps = (branch_limit: number, storage_quota_cap_gib: number) => ({
  branch_limit,
  leased_branch_limit: 0,
  storage_quota_cap_gib,
});
const capsPath = ({ id }: { id: string }) => `/platform/v1/projects/${id}`;
const branchesPath = ({ id }: { id: string }) => `/api/v1/projects/${id}/branches`;
const projectPath = ({ id }: { id: string }) => `/api/v1/projects/${id}`;
/** Path of the quota in specification 4.4. */
const quotaPath = ({ id }: { id: string }) => `/v1/projects/${id}`;

/** Changes of the project from its audit log, oldest first. */
async function changesOf({ id }: ProjectBody) {
  const { body } = await owner.get<{ audit_events: AuditEvent[] }>(`/api/v1/audit-events?project_id=${id}`);
  return body.audit_events
    .filter(({ name }) => name !== 'project.created')
    .reverse()
    .map(({ name, metadata }) => ({ name, ...metadata }));
}

test.runIf(IS_NIGHTLY)('raising the cap permits an eleventh branch; lowering it removes none', async () => {
  const project = await owner.project('Many branches');
  for (let n = 2; n <= 10; n++) await owner.branch(project.id, `branch-${n}`);
  const eleventh = { branch_name: 'branch-11' };
  expect(await owner.post(branchesPath(project), eleventh)).toMatchObject({
    status: 429,
    body: {
      error: 'BRANCH_LIMIT_REACHED',
      limit: 10,
      current: 10,
      retry_after: null,
    },
  });
  expect(await platform.patch(capsPath(project), { branch_limit: 20 })).toMatchObject({
    status: 200,
    body: { project_id: project.id, branch_limit: 20, storage_quota_cap_gib: 5 },
  });
  expect((await owner.post(branchesPath(project), eleventh)).status).toBe(201);

  await platform.patch(capsPath(project), { branch_limit: 10 });
  expect((await owner.get(projectPath(project))).body).toMatchObject({
    branch_limit: 10,
    branch_count: 11,
  });
  expect((await owner.credentials(project.id, 'branch-11')).database).toContain('branch-11');
  expect(await owner.post(branchesPath(project), { branch_name: 'branch-12' })).toMatchObject({
    status: 429,
    body: { limit: 10, current: 11 },
  });
  expect(await changesOf(project)).toEqual([
    ...Array(9).fill(expect.objectContaining({ name: 'branch.created' })),
    {
      name: 'project.caps.changed',
      from: caps(10, 5),
      to: caps(20, 5),
    },
    expect.objectContaining({ name: 'branch.created' }),
    {
      name: 'project.caps.changed',
      from: caps(20, 5),
      to: caps(10, 5),
    },
    expect.objectContaining({ name: 'branch.credentials.viewed' }),
  ]);
});

test('the quota can be changed at both of its paths, up to the cap', async () => {
  const project = await owner.project('Large');
  expect(project).toMatchObject({ storage_quota_gib: 0.25 });
  for (const path of [projectPath(project), quotaPath(project)]) {
    expect(await owner.patch(path, { storage_quota_gib: 5 })).toMatchObject({
      status: 200,
      body: { id: project.id, storage_quota_gib: 5 },
    });
    expect(await owner.patch(path, { storage_quota_gib: 5.01 })).toMatchObject({
      status: 422,
      body: { error: 'QUOTA_ABOVE_SELF_SERVICE_CAP', limit: 5 },
    });
  }
  expect((await platform.patch(capsPath(project), { storage_quota_cap_gib: 12.5 })).status).toBe(200);
  expect((await owner.patch(quotaPath(project), { storage_quota_gib: 12.5 })).status).toBe(200);
  expect(await owner.patch(projectPath(project), { storage_quota_gib: 13 })).toMatchObject({
    status: 422,
    body: { error: 'QUOTA_ABOVE_SELF_SERVICE_CAP', limit: 12.5 },
  });
  expect((await owner.get(projectPath(project))).body).toMatchObject({ storage_quota_gib: 12.5 });
  expect(await changesOf(project)).toEqual([
    { name: 'project.quota.changed', from: 0.25, to: 5 },
    {
      name: 'project.caps.changed',
      from: caps(10, 5),
      to: caps(10, 12.5),
    },
    { name: 'project.quota.changed', from: 5, to: 12.5 },
  ]);
});

test('lowering a cap reduces no quota and does not prevent other changes', async () => {
  const project = await owner.project('Lowered');
  await platform.patch(capsPath(project), { storage_quota_cap_gib: 8 });
  await owner.patch(projectPath(project), { storage_quota_gib: 8 });
  await platform.patch(capsPath(project), { storage_quota_cap_gib: 5 });
  expect(await owner.patch(projectPath(project), { name: 'Renamed' })).toMatchObject({
    status: 200,
    body: { name: 'Renamed', storage_quota_gib: 8 },
  });
  expect(await owner.patch(projectPath(project), { storage_quota_gib: 7 })).toMatchObject({
    status: 422,
    body: { limit: 5 },
  });
  expect((await owner.patch(projectPath(project), { storage_quota_gib: 4 })).status).toBe(200);
  const changes = await changesOf(project);
  expect(changes.filter(({ name }) => name !== 'project.caps.changed')).toEqual([
    { name: 'project.quota.changed', from: 0.25, to: 8 },
    { name: 'project.renamed', from: 'Lowered', to: 'Renamed' },
    { name: 'project.quota.changed', from: 8, to: 4 },
  ]);
});

test.runIf(IS_NIGHTLY)('concurrent changes of different fields are all applied', async () => {
  const project = await owner.project('Both');
  for (let n = 1; n <= (IS_NIGHTLY ? 10 : 4); n++) {
    await Promise.all([
      owner.patch(projectPath(project), { name: `Both ${n}` }),
      owner.patch(quotaPath(project), { storage_quota_gib: n / 4 }),
      platform.patch(capsPath(project), { branch_limit: 10 + n }),
      platform.patch(capsPath(project), { storage_quota_cap_gib: 5 + n }),
    ]);
    expect((await owner.get(projectPath(project))).body).toMatchObject({
      name: `Both ${n}`,
      storage_quota_gib: n / 4,
      branch_limit: 10 + n,
    });
    const { body } = await platform.patch(capsPath(project), { branch_limit: 10 + n });
    expect(body).toMatchObject({ storage_quota_cap_gib: 5 + n });
  }
});

test('a project can be created with a quota, up to the cap', async () => {
  const { storage_quota_gib } = await owner.project('With a quota', { storage_quota_gib: 1.5 });
  expect(storage_quota_gib).toBe(1.5);
  expect(await owner.post('/api/v1/projects', { name: 'Huge', storage_quota_gib: 5.5 })).toMatchObject({
    status: 422,
    body: { error: 'QUOTA_ABOVE_SELF_SERVICE_CAP', limit: 5 },
  });
});

test('an invalid value is refused and changes nothing', async () => {
  const project = await owner.project('Unchanged');
  const before = await owner.get<Record<string, unknown>>(projectPath(project));
  const refusedOfPlatform = [
    { branch_limit: 21 },
    { branch_limit: 9 },
    { leased_branch_limit: 21 },
    { leased_branch_limit: -1 },
    { branch_limit: 10.5 },
    { storage_quota_cap_gib: 0 },
    { branch_limit: 15, colour: 'red' },
    {},
  ];
  for (const body of refusedOfPlatform) {
    expect((await platform.patch(capsPath(project), body)).status, JSON.stringify(body)).toBe(422);
  }
  const refusedOfUsers = [
    { storage_quota_gib: 0 },
    { storage_quota_gib: -1 },
    { storage_quota_gib: '1' },
    { storage_quota_gib: null },
    { name: '' },
    { branch_limit: 20 },
    {},
  ];
  for (const body of refusedOfUsers) {
    for (const path of [projectPath(project), quotaPath(project)]) {
      expect((await owner.patch(path, body)).status, JSON.stringify(body)).toBe(422);
    }
  }
  expect((await platform.patch(capsPath({ id: UNKNOWN }), { branch_limit: 20 })).status).toBe(404);
  // A measurement may arrive in between.
  const unchanged = { ...before.body, storage_used_bytes: expect.any(Number) };
  expect((await owner.get(projectPath(project))).body).toEqual(unchanged);
  expect(await changesOf(project)).toEqual([]);
});
