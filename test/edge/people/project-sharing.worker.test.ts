import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { openDatabase } from '../../../edge/database/database.ts';
import { hosts, projects } from '../../../edge/database/schema.ts';
import { eventually } from '../../support/eventually.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { newMember, newOwner, type TestPerson } from '../../support/sign-in/people.ts';
import { refusal } from '../../support/sign-in/second-step.ts';
import { openEvents } from '../../support/worker/event-client.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';

let gateway: SignInGateway;
let owner: TestPerson;
let projectId: string;
let path: string;
let count = 0;

const NOW = new Date();

beforeAll(async () => {
  gateway = await startSignInGateway({ TWO_FACTOR: 'off' });
  const ports = { directPort: 5432, pooledPort: 6432 };
  await openDatabase(gateway.database)
    .insert(hosts)
    .values({ id: 'host', name: 'host', dbHost: 'db.example.com', ...ports, createdAt: NOW });
});
afterAll(() => gateway.stop());
beforeEach(async () => {
  count += 1;
  owner = await newOwner(gateway, `owner-${count}@example.com`);
  const { body } = await owner.api.get<{ tenant_id: string }>('/api/v1/me');
  projectId = crypto.randomUUID();
  path = `/api/v1/projects/${projectId}`;
  await openDatabase(gateway.database)
    .insert(projects)
    .values({
      id: projectId,
      name: 'Shop',
      appKey: `shop_${count}`,
      env: 'prod',
      status: 'active',
      hostId: 'host',
      createdBy: owner.userId,
      tenantId: body.tenant_id,
      createdAt: NOW,
      updatedAt: NOW,
    });
});

const memberWith = (role: string) => newMember(owner, gateway, `${role}-${count}@example.com`, role);
const share = (userId: string, role: string, by = owner) =>
  by.api.call('PUT', `${path}/members/${userId}`, { body: { role } });
const unshare = (userId: string) => owner.api.delete(`${path}/members/${userId}`);
const sees = async ({ api }: TestPerson) => {
  const { body } = await api.get<{ projects: unknown[] }>('/api/v1/projects');
  const reads = [
    path,
    `${path}/branches`,
    `${path}/jobs`,
    `${path}/network-rules`,
    `${path}/events?seconds=0`,
  ];
  const statuses = await Promise.all(reads.map(async (read) => (await api.get(read)).status));
  return [body.projects.length, ...new Set(statuses)];
};
const rename = ({ api }: TestPerson) => api.patch(path, { name: 'Renamed' });

describe('a project', () => {
  test('is seen by a viewer as long as it is shared', async () => {
    const viewer = await memberWith('viewer');
    expect(await sees(viewer)).toEqual([0, 404]);
    expect((await share(viewer.userId, 'viewer')).body).toMatchObject({
      user_id: viewer.userId,
      email: viewer.email,
      role: 'viewer',
    });
    expect(await sees(viewer)).toEqual([1, 200]);
    expect((await unshare(viewer.userId)).status).toBe(204);
    expect(await sees(viewer)).toEqual([0, 404]);
    expect(refusal(await unshare(viewer.userId))).toEqual([404, 'NOT_FOUND']);
  });

  test('shared for operating can be changed by an operator, and never by a viewer', async () => {
    const operator = await memberWith('operator');
    const viewer = await memberWith('viewer');
    expect(refusal(await rename(operator))).toEqual([404, 'NOT_FOUND']);
    for (const { userId } of [operator, viewer]) await share(userId, 'operator');
    expect((await rename(operator)).status).toBe(200);
    expect(refusal(await rename(viewer))).toEqual([403, 'FORBIDDEN', 'role owner, admin, operator']);
  });

  test('shared for viewing is seen by an operator, who cannot change it', async () => {
    const operator = await memberWith('operator');
    await share(operator.userId, 'viewer');
    expect(await sees(operator)).toEqual([1, 200]);
    const refused = [403, 'FORBIDDEN', 'project role operator'];
    for (const response of [
      await rename(operator),
      await operator.api.delete(path),
      await operator.api.post(`${path}/branches`, { branch_name: 'mine' }),
      await operator.api.get(`${path}/branches/main/credentials`),
    ]) {
      expect(refusal(response)).toEqual(refused);
    }
  });

  test('is not shared with the member of another tenant, and not by operators', async () => {
    const stranger = await newOwner(gateway, `stranger-${count}@example.com`);
    expect(refusal(await share(stranger.userId, 'viewer'))).toEqual([404, 'NOT_FOUND']);
    expect(refusal(await share(owner.userId, 'viewer', stranger))).toEqual([404, 'NOT_FOUND']);
    const operator = await memberWith('operator');
    await share(operator.userId, 'operator');
    const refused = [403, 'FORBIDDEN', 'role owner, admin'];
    expect(refusal(await share(operator.userId, 'operator', operator))).toEqual(refused);
  });

  test('is not shared with a member who was removed', async () => {
    const operator = await memberWith('operator');
    await share(operator.userId, 'operator');
    await owner.api.delete(`/api/v1/members/${operator.userId}`);
    expect((await owner.api.get(`${path}/members`)).body).toMatchObject({ members: [] });
    expect(refusal(await share(operator.userId, 'viewer'))).toEqual([404, 'NOT_FOUND']);
  });
});

test.runIf(IS_NIGHTLY)('a stream of events ends when its reader may no longer see the project', async () => {
  const open = async ({ login }: TestPerson) =>
    openEvents({ url: gateway.url, token: login.access_token ?? '' }, projectId);
  const kept = await memberWith('operator');
  const unshared = await memberWith('viewer');
  for (const { userId } of [kept, unshared]) await share(userId, 'viewer');
  const admin = await memberWith('admin');
  const other = await newOwner(gateway, `o-${count}@example.com`);
  expect((await open(other)).response.status).toBe(404);
  const people = [kept, unshared, admin, owner];
  const streams = await Promise.all(people.map(open));
  expect(streams.map(({ response }) => response.status)).toEqual([200, 200, 200, 200]);
  await unshare(unshared.userId);
  await owner.api.delete(`/api/v1/members/${admin.userId}`);
  await owner.api.post('/api/v1/auth/logout', undefined);
  await eventually(async () =>
    expect(streams.map(({ hasEnded }) => hasEnded())).toEqual([false, true, true, true]),
  );
});

test('each change is recorded once, and the list has the last role', async () => {
  const { userId, email } = await memberWith('operator');
  for (const role of ['viewer', 'viewer', 'operator']) await share(userId, role);
  const { body } = await owner.api.get(`${path}/members`);
  expect(body).toMatchObject({ members: [{ user_id: userId, email, role: 'operator' }], next_cursor: null });
  await unshare(userId);
  const { body: log } = await owner.api.get<{ audit_events: { name: string; metadata: object }[] }>(
    `/api/v1/audit-events?project_id=${projectId}`,
  );
  expect(log.audit_events.map(({ name, metadata }) => ({ name, ...metadata }))).toEqual([
    { name: 'project.unshared', user_id: userId, email, role: 'operator' },
    { name: 'project.shared', user_id: userId, email, role: 'operator' },
    { name: 'project.shared', user_id: userId, email, role: 'viewer' },
  ]);
});
