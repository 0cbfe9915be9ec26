import { eq } from 'drizzle-orm';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { auditEvents, maskingKeys, maskingPolicies } from '../../../edge/database/schema.ts';
import { Api } from '../../support/api.ts';
import { startTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';

let gateway: TripsGateway;
beforeAll(async () => {
  gateway = await startTripsGateway(0);
});
afterAll(() => gateway?.stop());

const EMAIL = { table: 'customer', column: 'email', with: 'email' };
const NAME = { table: 'customer', column: 'name', with: 'name' };

async function newProject() {
  const { id } = await gateway.api.project('Masked');
  const path = `/api/v1/projects/${id}/masking`;
  const put = (body: object, ifMatch?: string, api = gateway.api) =>
    api.call('PUT', path, { body, ...(ifMatch !== undefined && { headers: { 'If-Match': ifMatch } }) });
  const events = async () =>
    (await gateway.db.select().from(auditEvents).where(eq(auditEvents.projectId, id)))
      .filter(({ name }) => name === 'masking.changed')
      .map(({ metadata }) => metadata);
  return { id, path, put, events };
}

test('each change is a version and an audit event, and the same policy again is neither', async () => {
  const { id, path, put, events } = await newProject();
  const { body: none, headers } = await gateway.api.get(path);
  expect(none).toEqual({
    ...{ version: 0, etag: '"0"', rules: [], unlisted: 'refuse_likely_personal' },
    ...{ changed_by: null, changed_at: null },
  });
  expect(headers.get('etag')).toBe('"0"');

  const { body: first } = await put({ rules: [EMAIL] });
  expect(first).toMatchObject({
    version: 1,
    etag: '"1"',
    rules: [EMAIL],
    unlisted: 'refuse_likely_personal',
  });
  expect((await put({ rules: [EMAIL] })).body).toEqual(first);
  const hashed = { ...EMAIL, with: 'hash' };
  const { body: second } = await put({ rules: [hashed, NAME], unlisted: 'keep' }, '"1"');
  expect(second).toMatchObject({ version: 2, rules: [hashed, NAME], unlisted: 'keep' });
  expect((await gateway.api.get(path)).body).toEqual(second);
  expect(await events()).toEqual([
    {
      ...{ version: 1, unlisted: 'refuse_likely_personal' },
      ...{ added: ['public.customer.email'], removed: [], changed: [] },
    },
    {
      ...{ version: 2, unlisted: 'keep' },
      ...{ added: ['public.customer.name'], removed: [], changed: ['public.customer.email'] },
    },
  ]);
  const versions = await gateway.db.select().from(maskingPolicies).where(eq(maskingPolicies.projectId, id));
  expect(versions.map(({ version }) => version)).toEqual([1, 2]);
  expect(await gateway.db.select().from(maskingKeys).where(eq(maskingKeys.projectId, id))).toHaveLength(1);
});

test('a change of what was not read changes nothing', async () => {
  const { path, put } = await newProject();
  await put({ rules: [EMAIL] });
  for (const stale of ['"0"', '"2"', 'W/"1"', '1']) {
    const { status, body } = await put({ rules: [] }, stale);
    expect([status, body.error]).toEqual([412, 'MASKING_CHANGED']);
  }
  expect((await gateway.api.get(path)).body).toMatchObject({ version: 1, rules: [EMAIL] });
  expect((await put({ rules: [] }, '*')).body).toMatchObject({ version: 2, rules: [] });
  expect((await put({ rules: [EMAIL] }, '"7", "2"')).body).toMatchObject({ version: 3 });
});

test('of concurrent changes each becomes a version, or only one with If-Match', async () => {
  const { path, put } = await newProject();
  const columns = ['a', 'b', 'c'];
  const changes = (ifMatch?: string) =>
    Promise.all(columns.map((column) => put({ rules: [{ ...EMAIL, column }] }, ifMatch)));
  expect((await changes('"0"')).map(({ status }) => status).toSorted()).toEqual([200, 412, 412]);
  expect((await gateway.api.get(path)).body).toMatchObject({ version: 1 });
  expect((await changes()).map(({ status }) => status)).toEqual([200, 200, 200]);
});

test('only owners and admins change the policy, which everybody of the project may read', async () => {
  const { path, put } = await newProject();
  await put({ rules: [EMAIL] });
  const as = async (role: string, gid = role) => new Api(gateway.url, await gateway.tokenOf({ gid, role }));
  // The same person, who has created the project.
  for (const role of ['operator', 'viewer']) {
    const api = await as(role, 'user-1');
    expect((await put({ rules: [] }, undefined, api)).status).toBe(403);
    expect((await api.get(path)).body).toMatchObject({ version: 1 });
  }
  expect((await put({ rules: [] }, undefined, await as('admin'))).status).toBe(200);
  const stranger = new Api(gateway.url, await gateway.tokenOf({ gid: 'x', tenant: 'other' }));
  expect((await put({ rules: [EMAIL] }, undefined, stranger)).status).toBe(404);
});

test('an invalid policy changes nothing', async () => {
  const { path, put } = await newProject();
  const { status, body } = await put({ rules: [EMAIL, { ...EMAIL, table: 'public.customer' }] });
  expect([status, body.details]).toEqual([
    422,
    [{ path: 'rules.1.column', message: 'public.customer.email has another rule already' }],
  ]);
  expect((await gateway.api.get(path)).body).toMatchObject({ version: 0 });
});
