import { eq } from 'drizzle-orm';
import { beforeAll, expect, test } from 'vitest';
import { maskingKeys, maskingPolicies } from '../../../edge/database/masking-schema.ts';
import { auditEvents } from '../../../edge/database/schema.ts';
import { Api } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import { sharedTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';

let gateway: TripsGateway;
beforeAll(async () => {
  gateway = await sharedTripsGateway();
});

const EMAIL = { table: 'customer', column: 'email', with: 'email' };
const NAME = { table: 'customer', column: 'name', with: 'name' };

async function newProject(creator = gateway.api) {
  const { id } = await creator.project('Masked');
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
    version: 0,
    etag: '"0"',
    rules: [],
    unlisted: 'refuse_likely_personal',
    changed_by: null,
    changed_at: null,
    problems: [],
    suggestions: [],
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
  expect((await gateway.api.get(path)).body).toEqual({ ...second, problems: [], suggestions: [] });
  expect(await events()).toEqual([
    {
      version: 1,
      unlisted: 'refuse_likely_personal',
      added: ['public.customer.email'],
      removed: [],
      changed: [],
    },
    {
      version: 2,
      unlisted: 'keep',
      added: ['public.customer.name'],
      removed: [],
      changed: ['public.customer.email'],
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
  const as = async (role: string, gid = role) => new Api(gateway.url, await gateway.tokenOf({ gid, role }));
  const { path, put } = await newProject(await as('owner', 'lowered'));
  await put({ rules: [EMAIL] });
  // The same person, who has created the project.
  for (const role of ['operator', 'viewer']) {
    const api = await as(role, 'lowered');
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

test('a masked snapshot is made by the present policy, or nothing is', async () => {
  const { id, put } = await newProject();
  const path = `/api/v1/projects/${id}/branches/main/snapshots`;
  const take = () => gateway.api.post<Record<string, unknown>>(path, { name: 'masked', data: 'masked' });
  const missing = await take();
  expect([missing.status, missing.body.error, missing.body.columns]).toEqual([409, 'MASKING_INCOMPLETE', []]);

  await put({ rules: [{ ...EMAIL, table: 'gone' }] });
  const refused = await take();
  const columns = [{ table: 'public.gone', column: null, reason: 'it is gone' }];
  expect([refused.status, refused.body.error, refused.body.columns]).toEqual([
    409,
    'MASKING_INCOMPLETE',
    columns,
  ]);
  expect(refused.body.message).toContain('public.gone (it is gone)');
  const { body: job } = await gateway.api.get<Record<string, unknown>>(`/api/v1/jobs/${refused.body.job_id}`);
  expect(job).toMatchObject({
    status: 'failed',
    error: { code: 'MASKING_INCOMPLETE', message: refused.body.message },
  });
  expect((await gateway.api.get(path)).body).toMatchObject({ snapshots: [] });

  await put({ rules: [EMAIL] });
  const { status, body } = await take();
  expect(status).toBe(201);
  expect(body).toMatchObject({
    data: 'masked',
    masking_version: 2,
    independent: true,
    checked_at: body.taken_at,
  });
  expect((await gateway.api.get(path)).body).toMatchObject({ snapshots: [body] });
  const latest = { branch_name: 'of-latest', from: 'latest_snapshot' };
  const { status: none } = await gateway.api.post(`/api/v1/projects/${id}/branches`, latest);
  expect(none).toBe(409);
  const full = await gateway.api.post(path, {});
  expect(full.body).toMatchObject({ data: 'full', masking_version: null, checked_at: null });
});

test('what PostgreSQL refuses is said', async () => {
  const { id, put } = await newProject();
  await put({ rules: [EMAIL] });
  const failure = {
    code: 'STATEMENT_REFUSED',
    message: 'violates check constraint "c"',
    sqlstate: '23514',
  } as const;
  await gateway.plantFailure(id, 'snapshot.mask', failure);
  const path = `/api/v1/projects/${id}/branches/main/snapshots`;
  const { status, body } = await gateway.api.post<Record<string, unknown>>(path, { data: 'masked' });
  await gateway.plantFailure(id, 'snapshot.mask', null);
  expect([status, body.error]).toEqual([409, 'MASKING_INCOMPLETE']);
  expect(body.message).toContain('violates check constraint "c"');
});

test('no branch of a masked snapshot is opened before the policy was compared with the source', async () => {
  const { id, put } = await newProject();
  await put({ rules: [{ ...EMAIL, table: 'uncovered' }] });
  const create = (branch_name: string) =>
    gateway.api.post(`/api/v1/projects/${id}/branches`, { branch_name, data: 'masked' });
  // It makes the snapshot, and the host covers everything then.
  expect(await create('first')).toMatchObject({ status: 201 });
  const calls = async () => ({
    compared: await gateway.countCalls(id, 'masking.inspect'),
    opened: await gateway.countCalls(id, 'branch.finalize'),
    dropped: await gateway.countCalls(id, 'branch.drop'),
  });
  const { compared, opened, dropped } = await calls();
  const refused = await create('second');
  expect([refused.status, refused.body.error]).toEqual([409, 'MASKING_INCOMPLETE']);
  expect(await calls()).toEqual({ compared: compared + 1, opened, dropped: dropped + 1 });

  const away = { code: 'HOST_UNAVAILABLE', message: 'the host of the test is away' } as const;
  await gateway.plantFailure(id, 'masking.inspect', away);
  const waiting = gateway.api.post(
    `/api/v1/projects/${id}/branches`,
    { branch_name: 'third', data: 'masked' },
    { Prefer: 'wait=0' },
  );
  expect((await waiting).status).toBe(202);
  await eventually(async () => expect((await calls()).compared).toBeGreaterThan(compared + 2));
  expect((await calls()).opened).toBe(opened);
  await gateway.plantFailure(id, 'masking.inspect', null);
  await eventually(async () => expect((await calls()).dropped).toBe(dropped + 2));
  expect((await calls()).opened).toBe(opened);
});
