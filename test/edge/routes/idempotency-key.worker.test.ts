import { eq } from 'drizzle-orm';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { auditEvents, idempotencyKeys, projects } from '../../../edge/database/schema.ts';
import { WEBHOOKS_MAX } from '../../../edge/webhooks/webhook.ts';
import { NETWORK_RULES_MAX } from '../../../shared/limits.ts';
import { Api } from '../../support/api.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { startMailServer } from '../../support/sign-in/mail-server.ts';
import { accept, newOwner, type TestPerson } from '../../support/sign-in/people.ts';
import { mailTo, readCode } from '../../support/sign-in/sign-in.ts';
import { startTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';
import { PLATFORM_SECRET } from '../../support/worker/worker.ts';

/** Long enough for concurrent requests to read the key before one of them stores it. */
const DELAY_MS = 20;

let gateway: TripsGateway;
let project: string;
let mailServer: Awaited<ReturnType<typeof startMailServer>>;
/** Has an account of the gateway, without which nobody can be invited. */
let owner: TestPerson;

const site = () => ({ url: gateway.url, mails: () => mailServer.posted.map(({ body }) => body) });
const platform = () => new Api(gateway.url, PLATFORM_SECRET);

beforeAll(async () => {
  mailServer = await startMailServer();
  const settings = { MAIL_API_URL: mailServer.url, TWO_FACTOR: 'off' };
  gateway = await startTripsGateway(DELAY_MS, settings);
  project = (await gateway.api.project('Keys')).id;
  owner = await newOwner(site(), 'owner@example.com');
});
afterAll(async () => {
  await gateway?.stop();
  await mailServer?.stop();
});

type Tenant = { invitation: { id: string }; error?: string };
type Created = Record<string, unknown> & { id: string; error?: string };

const ISSUER = { issuer: 'https://ci.example.com', audience: 'branchgate', role: 'operator' };
const webhook = (name: string) => ({ url: `http://127.0.0.1:9/${name}`, events: ['storage.changed'] });
const apiKey = (name: string) => ({ name, role: 'viewer', scopes: ['branchgate:read'], expires_in_days: 1 });
const trust = (name: string) => ({ ...ISSUER, claims: { repository: name } });
const provider = (name: string) => ({
  name,
  issuer: `https://${name}.example.com`,
  client_id: 'gateway',
  client_secret: `the secret of ${name}`,
  domains: [`${name}.example.com`],
});
const invitation = (name: string) => ({ email: `${name}@example.com`, role: 'viewer' });

const PROVIDERS = '/api/v1/identity-providers';
const trustsPath = () => `/api/v1/projects/${project}/trusts`;
const create = (path: string, body: unknown, key: string, api = gateway.api) =>
  api.post<Created>(path, body, { 'Idempotency-Key': key });
const isReplay = ({ headers }: { headers: Headers }) => headers.get('idempotency-replayed') === 'true';

interface Kind {
  /** The field of the list that has them. */
  list: string;
  path: () => string;
  bodyOf: (name: string) => object;
  /** What differs in a repeated response. */
  repeated?: object;
  caller?: () => Api;
}

/** What is stored for its tenant alone, and what has a mail or a secret of somebody else. */
const CROWDED_BY_DAY = ['webhooks', 'invitations'];

describe.each<Kind>([
  { list: 'webhooks', path: () => '/api/v1/webhooks', bodyOf: webhook },
  { list: 'api_keys', path: () => '/api/v1/api-keys', bodyOf: apiKey, repeated: { key: null } },
  { list: 'trusts', path: trustsPath, bodyOf: trust },
  { list: 'invitations', path: () => '/api/v1/invitations', bodyOf: invitation, caller: () => owner.api },
  { list: 'identity_providers', path: () => PROVIDERS, bodyOf: provider, caller: () => owner.api },
])('$list under an Idempotency-Key', ({ list, path, bodyOf, repeated, caller = () => gateway.api }) => {
  const post = (name: string, key: string) => create(path(), bodyOf(name), key, caller());
  const all = async () =>
    (await caller().get<Record<string, { id: string }[]>>(path())).body[list]?.map(({ id }) => id) ?? [];

  test('are created once; a repetition gets the first response', async () => {
    const first = await post('once', 'once');
    const again = await post('once', 'once');
    expect([first.status, isReplay(first)]).toEqual([201, false]);
    expect([again.status, isReplay(again), again.body]).toEqual([201, true, { ...first.body, ...repeated }]);
    expect(await all()).toEqual([first.body.id]);
  });

  test('are not created with another body, and a refused request leaves the key free', async () => {
    const before = await all();
    expect(await post('other', 'once')).toMatchObject({
      status: 422,
      body: { error: 'IDEMPOTENCY_KEY_REUSED' },
    });
    expect(await all()).toEqual(before);
    expect((await create(path(), {}, 'free', caller())).status).toBe(422);
    expect((await post('free', 'free')).status).toBe(201);
  });

  test.runIf(IS_NIGHTLY || CROWDED_BY_DAY.includes(list))(
    'are created once by concurrent requests',
    async () => {
      const before = await all();
      const responses = await Promise.all(Array.from({ length: 5 }, () => post('crowd', 'crowd')));
      const made = (await all()).filter((id) => !before.includes(id));
      expect(made).toHaveLength(1);
      for (const { status, body } of responses) {
        if (status === 201) expect(body.id).toBe(made[0]);
        else expect([status, body.error]).toEqual([409, 'IDEMPOTENCY_IN_FLIGHT']);
      }
      expect((await post('crowd', 'crowd')).body.id).toBe(made[0]);
    },
  );
});

test('each repetition that shows the secret of a webhook is audited, and its creation once', async () => {
  const post = () => create('/api/v1/webhooks', webhook('viewed'), 'viewed');
  const { id } = (await post()).body;
  const audited = async (name: string) => {
    const rows = await gateway.db.select().from(auditEvents).where(eq(auditEvents.name, name));
    return rows.map(({ metadata }) => metadata).filter(({ webhook_id }) => webhook_id === id);
  };
  expect(await audited('webhook.secret.viewed')).toEqual([]);
  for (let times = 1; times <= 2; times++) {
    expect(isReplay(await post())).toBe(true);
    const about = { webhook_id: id, host: '127.0.0.1:9', events: ['storage.changed'] };
    expect(await audited('webhook.secret.viewed')).toEqual(Array(times).fill(about));
  }
  expect(await audited('webhook.created')).toHaveLength(1);
});

test('the last free place goes to one of two concurrent requests, and no limit refuses the other', async () => {
  const { body } = await gateway.api.get<{ webhooks: unknown[] }>('/api/v1/webhooks');
  for (let count = body.webhooks.length; count < WEBHOOKS_MAX - 1; count++)
    expect((await gateway.api.post('/api/v1/webhooks', webhook('fill'))).status).toBe(201);
  const last = () => create('/api/v1/webhooks', webhook('last'), 'last');
  const both = await Promise.all([last(), last()]);
  const errors = both.filter(({ status }) => status !== 201).map(({ body: { error } }) => error);
  expect(errors).toEqual(['IDEMPOTENCY_IN_FLIGHT']);
});

test('the last free rule goes to one of two concurrent requests, and no limit refuses the other', async () => {
  const { id } = await gateway.api.project('Rules');
  await gateway.inD1(
    `with recursive n (i) as (select 2 union all select i + 1 from n where i < ${NETWORK_RULES_MAX})
     insert into network_rules (id, project_id, cidr, source, revision, created_by, tenant_id, created_at)
     select p.id || i, p.id, i, 'manual', 0, p.created_by, p.tenant_id, 0 from n, projects p where p.id = ?`,
    id,
  );
  const last = () => create(`/api/v1/projects/${id}/network-rules`, { cidr: '192.0.2.1/32' }, 'last');
  const both = await Promise.all([last(), last()]);
  expect(both.map(({ status, body }) => body.error ?? status).sort()).toEqual([201, 'IDEMPOTENCY_IN_FLIGHT']);
});

test('a token of SCIM is made once under its key, by an owner and by the operator', async () => {
  const { tenant_id } = (await owner.api.get<{ tenant_id: string }>('/api/v1/me')).body;
  const { id } = (await create(PROVIDERS, provider('scim'), 'scim', owner.api)).body;
  const sides: [path: string, api: Api][] = [
    [PROVIDERS, owner.api],
    [`/platform/v1/tenants/${tenant_id}/identity-providers`, platform()],
  ];
  for (const [path, api] of sides) {
    const make = () => create(`${path}/${id}/scim-token`, undefined, 'token', api);
    const first = await make();
    expect([first.status, isReplay(first)]).toEqual([201, false]);
    const again = await make();
    expect([again.status, isReplay(again), again.body]).toEqual([201, true, { ...first.body, token: null }]);
    // The repetition has not replaced it.
    const scim = new Api(gateway.url, String(first.body.token));
    expect((await scim.get('/scim/v2/Users')).status).toBe(200);
    const stored = JSON.stringify(await gateway.db.select().from(idempotencyKeys));
    expect(stored).not.toContain(String(first.body.token));
  }
});

test('the operator adds a provider once under its key', async () => {
  const { tenant_id } = (await owner.api.get<{ tenant_id: string }>('/api/v1/me')).body;
  const path = `/platform/v1/tenants/${tenant_id}/identity-providers`;
  const add = (name: string) => create(path, provider(name), 'added', platform());
  const first = await add('added');
  const again = await add('added');
  expect([again.status, isReplay(again), again.body]).toEqual([201, true, first.body]);
  expect(await add('another')).toMatchObject({ status: 422, body: { error: 'IDEMPOTENCY_KEY_REUSED' } });
});

test('a tenant is made once under its key, also when its owner has joined meanwhile', async () => {
  const owner_email = 'first@keyed.example.com';
  const body = { tenant_id: 'keyed', name: 'Keyed', owner_email };
  const make = (name = 'Keyed', key = 'tenant') =>
    platform().post<Tenant>('/platform/v1/tenants', { ...body, name }, { 'Idempotency-Key': key });
  const crowd = await Promise.all(Array.from({ length: 5 }, () => make()));
  const made = crowd.filter(({ status }) => status === 201).map(({ body: tenant }) => tenant);
  expect(new Set(made.map(({ invitation: { id } }) => id)).size).toBe(1);
  for (const { status, body: refused } of crowd.filter((one) => one.status !== 201))
    expect([status, refused.error]).toEqual([409, 'IDEMPOTENCY_IN_FLIGHT']);
  const again = await make();
  expect([again.status, isReplay(again), again.body]).toEqual([201, true, made[0]]);
  expect((await make('Another')).body.error).toBe('IDEMPOTENCY_KEY_REUSED');

  const code = readCode(await mailTo(site(), owner_email));
  expect((await accept(site(), owner_email, made[0]?.invitation.id ?? '', code)).status).toBe(200);
  const late = await make();
  expect([late.status, isReplay(late), late.body]).toEqual([201, true, made[0]]);
  expect((await make('Keyed', 'other')).body.error).toBe('TENANT_EXISTS');
  expect(
    site()
      .mails()
      .filter(({ to }) => to === owner_email),
  ).toHaveLength(1);
});

test('no secret is stored with the key', async () => {
  const hook = await create('/api/v1/webhooks', webhook('once'), 'once');
  const key = await create('/api/v1/api-keys', apiKey('secret'), 'secret');
  const stored = JSON.stringify(await gateway.db.select().from(idempotencyKeys));
  expect(stored).toContain(hook.body.id);
  expect(stored).not.toContain(String(hook.body.secret).slice(6));
  expect(stored).not.toContain(String(key.body.key).slice(20));
});

test('a deleted webhook is not found again under its key', async () => {
  const { body } = await create('/api/v1/webhooks', webhook('once'), 'once');
  expect((await gateway.api.delete(`/api/v1/webhooks/${body.id}`)).status).toBe(204);
  const again = await create('/api/v1/webhooks', webhook('once'), 'once');
  expect([again.status, isReplay(again)]).toEqual([404, false]);
});

test('the access is checked again for each repetition', async () => {
  const as = async (role: string) => new Api(gateway.url, await gateway.tokenOf({ gid: 'ada', role }));
  const admin = { ...apiKey('admin'), role: 'admin' };
  expect((await create('/api/v1/api-keys', admin, 'access', await as('admin'))).status).toBe(201);
  expect((await create('/api/v1/api-keys', admin, 'access', await as('viewer'))).status).toBe(403);
  expect((await create('/api/v1/api-keys', admin, 'access')).body.key).toEqual(expect.any(String));

  const ofProject = { ...apiKey('project'), project_id: project };
  expect((await create('/api/v1/api-keys', ofProject, 'project')).status).toBe(201);
  await gateway.db.update(projects).set({ tenantId: 'other' }).where(eq(projects.id, project));
  expect((await create('/api/v1/api-keys', ofProject, 'project')).status).toBe(404);
  expect((await create(trustsPath(), trust('once'), 'once')).status).toBe(404);
});
