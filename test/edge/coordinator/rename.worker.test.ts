import { eq } from 'drizzle-orm';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { auditEvents, projectBranches } from '../../../edge/database/schema.ts';
import type { BranchBody } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import { startTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';

let gateway: TripsGateway;
let projectId: string;
let branch: BranchBody;
let path: string;

beforeAll(async () => {
  // Each test makes a project, and the shared gateway has a tenant at its limit.
  gateway = await startTripsGateway(0);
});
afterAll(() => gateway?.stop());
beforeEach(async () => {
  ({ id: projectId } = await gateway.api.project('Shop'));
  branch = await gateway.api.branch(projectId, 'former');
  path = `/api/v1/projects/${projectId}/branches`;
});

const rename = (name = 'renamed', ref = branch.id) =>
  gateway.api.patch<BranchBody>(`${path}/${ref}`, { branch_name: name });
const recorded = async () => {
  const [row] = await gateway.db.select().from(projectBranches).where(eq(projectBranches.id, branch.id));
  return row;
};
const renames = async () => {
  const events = await gateway.db.select().from(auditEvents).where(eq(auditEvents.branchId, branch.id));
  return events.filter(({ name }) => name === 'branch.renamed').map(({ metadata }) => metadata);
};
const plant = (code: 'POSTGRES_UNAVAILABLE' | 'INVALID_CALL' | null) =>
  gateway.plantFailure(projectId, 'branch.rename', code && { code, message: 'planted' });
const wake = () => gateway.coordinatorOf(projectId).wake();

test('a branch and its children have the new name in one write, and a repeated request is answered', async () => {
  const { api } = gateway;
  const child = await api.branch(projectId, 'child', { source_branch_id: branch.id });
  const database_name = branch.database_name.replace('former', 'renamed');
  expect(await rename()).toMatchObject({
    status: 200,
    body: { id: branch.id, branch_name: 'renamed', database_name },
  });
  expect(await rename()).toMatchObject({ status: 200, body: { branch_name: 'renamed' } });
  expect((await api.get(`${path}/${child.id}`)).body).toMatchObject({
    parent_branch_id: branch.id,
    source_database: database_name,
  });
  expect((await api.credentials(projectId, 'renamed')).direct_url).toContain(`/${database_name}?`);
  expect(await renames()).toEqual([{ from: 'former', to: 'renamed', database: database_name }]);
});

test.each([
  ['main', 'other', 403, 'BRANCH_PROTECTED'],
  ['former', 'main', 422, 'VALIDATION_FAILED'],
  ['former', 'taken', 409, 'BRANCH_EXISTS'],
  ['former', 'x'.repeat(48), 422, 'DATABASE_NAME_TOO_LONG'],
])('%s does not become %s: %i %s', async (ref, name, status, error) => {
  await gateway.api.branch(projectId, 'taken');
  expect(await rename(name, ref)).toMatchObject({ status, body: { error } });
  expect(await recorded()).toMatchObject({ branchName: 'former' });
  expect(await renames()).toEqual([]);
});

test('nothing else changes in the same request', async () => {
  const body = { branch_name: 'renamed', protected: true };
  expect(await gateway.api.patch(`${path}/${branch.id}`, body)).toMatchObject({ status: 422 });
});

test('while the host has not renamed it, it is not cloned, and nobody takes its former name', async () => {
  const { api } = gateway;
  await plant('POSTGRES_UNAVAILABLE');
  const renaming = rename();
  await eventually(async () => expect(await recorded()).toMatchObject({ branchName: 'renamed' }));
  const busy = { status: 503, body: { error: 'HOST_BUSY' } };
  const create = (body: object) => api.post(path, { branch_name: 'child', ...body });
  expect(await create({ source_branch_id: branch.id })).toMatchObject(busy);
  expect(await create({ branch_name: 'former' })).toMatchObject(busy);
  expect(await api.post(`${path}/${branch.id}/snapshots`, {})).toMatchObject(busy);
  expect(await rename('third')).toMatchObject(busy);
  const repeated = rename();
  await plant(null);
  await wake();
  for (const response of [renaming, repeated])
    expect(await response).toMatchObject({ status: 200, body: { branch_name: 'renamed' } });
  expect(await renames()).toHaveLength(1);
  expect(await create({ branch_name: 'former' })).toMatchObject({ status: 201 });
});

test('while a branch is cloned from it, it keeps its name', async () => {
  const { api } = gateway;
  await gateway.plantFailure(projectId, 'branch.clone', { code: 'POSTGRES_UNAVAILABLE', message: 'planted' });
  const child = { branch_name: 'child', source_branch_id: branch.id };
  expect(await api.post(path, child, { Prefer: 'wait=0' })).toMatchObject({ status: 202 });
  expect(await rename()).toMatchObject({ status: 503, body: { error: 'HOST_BUSY' } });
  await gateway.plantFailure(projectId, 'branch.clone', null);
  await wake();
  await eventually(async () => expect(await rename()).toMatchObject({ status: 200 }));
});

test('a rename that the host refuses is undone in the records, and the audit log has both', async () => {
  const child = await gateway.api.branch(projectId, 'child', { source_branch_id: branch.id });
  await plant('INVALID_CALL');
  expect((await rename()).status).toBeGreaterThanOrEqual(500);
  await plant(null);
  expect(await recorded()).toMatchObject({ branchName: 'former', databaseName: branch.database_name });
  expect((await gateway.api.get(`${path}/${child.id}`)).body).toMatchObject({
    source_database: branch.database_name,
  });
  expect(await renames()).toMatchObject([{ to: 'renamed' }, { to: 'former', undone: true }]);
});

test('a branch that is deleted meanwhile stays deleted', async () => {
  await plant('POSTGRES_UNAVAILABLE');
  const renaming = rename();
  await eventually(async () => expect(await recorded()).toMatchObject({ branchName: 'renamed' }));
  expect((await gateway.api.delete(`${path}/${branch.id}?purge=true`)).status).toBe(202);
  await plant(null);
  await wake();
  expect((await renaming).status).toBe(404);
  expect(await recorded()).toMatchObject({ status: 'deleted', branchName: 'renamed' });
});
