import { randomUUID } from 'node:crypto';
import { eq } from 'drizzle-orm';
import { beforeAll, expect, test } from 'vitest';
import { auditEvents, projectBranches, projects } from '../../../edge/database/schema.ts';
import type { Credentials } from '../../support/api.ts';
import { sharedTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';

let gateway: TripsGateway;

beforeAll(async () => {
  gateway = await sharedTripsGateway();
});

test('a pending rotation is not returned under its idempotency key either', async () => {
  const { id, main_branch } = await gateway.api.project('Shop');
  const setLinked = await gateway.moveProject(id);
  const path = `/api/v1/projects/${id}/branches/${main_branch.id}/credentials`;
  const before = await gateway.api.credentials(id, main_branch.id);
  const key = { 'Idempotency-Key': randomUUID() };
  const rotate = () => gateway.api.call<Credentials>('POST', `${path}/rotate`, { headers: key });

  await setLinked(true, false);
  for (let times = 0; times < 2; times++)
    expect(await rotate()).toMatchObject({ status: 503, body: { error: 'HOST_UNAVAILABLE' } });
  await setLinked(true);
  const rotated = await rotate();
  expect(rotated.status).toBe(200);
  expect(rotated.body.database_url).not.toBe(before.database_url);
  expect((await rotate()).body).toEqual(rotated.body);
});

/** A project with functions for its `main` branch. */
async function rotatableProject() {
  const { id, main_branch } = await gateway.api.project('Shop');
  const path = `/api/v1/projects/${id}/branches/${main_branch.id}/credentials`;
  const branchId = main_branch.id;
  return {
    id,
    branchId,
    rotate: (body?: unknown, headers = {}) =>
      gateway.api.call<Credentials>('POST', `${path}/rotate`, { body, headers }),
    async passwords() {
      const usual = await gateway.api.credentials(id, branchId);
      const reading = await gateway.api.credentials(id, branchId, '?role=read_only');
      return { owner: usual.direct_url, read_write: usual.database_url, read_only: reading.direct_url };
    },
    async metadataOf(name: string) {
      const rows = await gateway.db.select().from(auditEvents).where(eq(auditEvents.branchId, branchId));
      return rows.filter((row) => row.name === name).map(({ metadata }) => metadata);
    },
  };
}

test.each([
  [undefined, ['owner', 'read_write', 'read_only']],
  [{}, ['owner', 'read_write', 'read_only']],
  [{ roles: ['read_only'] }, ['read_only']],
  [{ roles: ['read_write', 'owner'] }, ['owner', 'read_write']],
])('the body %j rotates %j alone, and the audit event names them', async (body, roles) => {
  const project = await rotatableProject();
  const before = await project.passwords();
  const rotated = await project.rotate(body);
  expect(rotated.status).toBe(200);
  const after = await project.passwords();
  const changed = Object.entries(after).filter(([role, url]) => url !== before[role as keyof typeof before]);
  expect(changed.map(([role]) => role)).toEqual(roles);
  expect(await project.metadataOf('branch.credentials.rotated')).toEqual([{ roles }]);
  const onlyReading = roles.join() === 'read_only';
  expect(rotated.body.direct_url).toBe(onlyReading ? after.read_only : after.owner);
});

test.each([
  { roles: [] },
  { roles: ['owner', 'owner'] },
  { roles: ['superuser'] },
  { roles: 'owner' },
  { role: 'owner' },
  '[]',
])('the body %j is refused', async (body) => {
  const project = await rotatableProject();
  const before = await project.passwords();
  expect(await project.rotate(body)).toMatchObject({ status: 422, body: { error: 'VALIDATION_FAILED' } });
  expect(await project.passwords()).toEqual(before);
});

test('a rotation repeated under its key is audited as a view, and its access is checked each time', async () => {
  const project = await rotatableProject();
  const key = { 'Idempotency-Key': randomUUID() };
  const body = { roles: ['read_only'] };
  const views = () => project.metadataOf('branch.credentials.viewed');
  expect((await project.rotate(body, key)).status).toBe(200);
  expect(await views()).toEqual([]);
  for (let times = 1; times <= 2; times++) {
    expect((await project.rotate(body, key)).headers.get('idempotency-replayed')).toBe('true');
    expect(await views()).toEqual(Array(times).fill({ role: 'read_only' }));
  }
  expect((await project.rotate({ roles: ['owner'] }, key)).body.error).toBe('IDEMPOTENCY_KEY_REUSED');
  // The branch moves while the request is being processed, then the project has moved.
  await gateway.db
    .update(projectBranches)
    .set({ tenantId: 'other' })
    .where(eq(projectBranches.id, project.branchId));
  expect((await project.rotate(body, key)).status).toBe(404);
  await gateway.db.update(projects).set({ tenantId: 'other' }).where(eq(projects.id, project.id));
  expect((await project.rotate(body, key)).status).toBe(404);
  expect(await views()).toHaveLength(2);
});
