import { createHash } from 'node:crypto';
import { decodeJwt } from 'jose';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { openDatabase } from '../../../edge/database/database.ts';
import { hosts, projects } from '../../../edge/database/schema.ts';
import { materialize } from '../../../edge/tenancy/users.ts';
import { Api } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';
import {
  addCompany,
  type Company,
  returnToGateway,
  startAtCompany,
} from '../../support/sign-in/company-provider.ts';
import { forgeriesOf } from '../../support/sign-in/forgeries.ts';
import { refusal } from '../../support/sign-in/second-step.ts';
import { logIn } from '../../support/sign-in/sign-in.ts';
import { openEvents } from '../../support/worker/event-client.ts';
import { type SignInGateway, startSignInGateway } from '../../support/worker/sign-in-gateway.ts';
import { PLATFORM_SECRET } from '../../support/worker/worker.ts';

let gateway: SignInGateway;
let acme: Company;
let evil: Company;
/** With the token of SCIM of acme. */
let scim: Api;
/** Whether the streams of people who lose their access ended within 30 seconds, while the other tests ran. By night. */
let streamsEnd: Promise<unknown>;

const company = (domain: string) => addCompany(gateway, domain);
const start = (at: Pick<Company, 'id'>, query = '') => startAtCompany(gateway, at, query);
const callback = (address: URL | string, cookie: string) => returnToGateway(gateway, address, cookie);

async function signIn(at: Company, person: Record<string, unknown>): Promise<Response> {
  const { location, cookie } = await start(at);
  return callback(at.provider.authorize(location, { sub: 'ada', ...person }), cookie);
}

interface Tokens {
  access_token: string;
  refresh_token: string;
}

const ada = (more: Record<string, unknown> = {}) => ({
  email: `ada@${acme.domain}`,
  email_verified: true,
  ...more,
});

async function signedIn(at: Company, person: Record<string, unknown>): Promise<Tokens & { api: Api }> {
  const response = await signIn(at, person);
  const body = (await response.json()) as Tokens;
  expect([response.status, body]).toMatchObject([200, {}]);
  return { ...body, api: new Api(gateway.url, body.access_token) };
}

/** The bearer of an access token of the gateway, as the pipeline reads it. */
async function identityOf(api: Api, token: string) {
  const { body: me } = await api.get<{ issuer: string; email: string; role: string; tenant_id: string }>(
    '/api/v1/me',
  );
  const claims = decodeJwt<{ sid: string; idp: { id: string } }>(token);
  return {
    issuer: me.issuer,
    gid: claims.sub ?? '',
    email: me.email,
    role: me.role,
    scopes: [],
    service: 'branchgate',
    tenantId: me.tenant_id,
    issuedAt: new Date((claims.iat ?? 0) * 1000),
    expiresAt: new Date((claims.exp ?? 0) * 1000),
    sessionId: claims.sid,
    providerId: claims.idp.id,
  };
}

/** Three people read the events and the measurements of a project; SCIM disables one and deletes one. */
async function removeReaders(): Promise<{ streamsEnd: Promise<unknown> }> {
  const projectId = crypto.randomUUID();
  const now = new Date();
  const ports = { directPort: 5432, pooledPort: 6432 };
  const host = { id: 'host', name: 'host', dbHost: 'db.example.com', ...ports, createdAt: now };
  const project = {
    id: projectId,
    name: 'Shop',
    appKey: 'shop',
    env: 'prod',
    status: 'active',
    hostId: host.id,
    createdBy: acme.owner.userId,
    tenantId: acme.tenantId,
    createdAt: now,
    updatedAt: now,
  } as const;
  const db = openDatabase(gateway.database);
  await db.batch([db.insert(hosts).values(host), db.insert(projects).values(project)]);
  const readers = await Promise.all(
    ['stays', 'disabled', 'deleted'].map(async (name) => {
      const email = `${name}-reader@${acme.domain}`;
      const { body } = await scim.post<{ id: string }>('/scim/v2/Users', { userName: email });
      const person = { sub: `${name}-reader`, email, email_verified: true, groups: 'admins' };
      const { access_token: token } = await signedIn(acme, person);
      const open = async (path: string) => {
        const caller = { url: gateway.url, token };
        const stream = await openEvents(caller, projectId, undefined, { outlivesTest: true, path });
        expect(stream.response.status).toBe(200);
        return stream;
      };
      return { id: body.id, streams: [await open('events'), await open('metrics/stream')] };
    }),
  );
  const [, disabled, deleted] = readers.map(({ id }) => `/scim/v2/Users/${id}`);
  const Operations = [{ op: 'replace', path: 'active', value: false }];
  expect((await scim.call('PATCH', disabled ?? '', { body: { Operations } })).status).toBe(200);
  expect((await scim.delete(deleted ?? '')).status).toBe(204);
  const ending = eventually(async () => {
    const ended = readers.map(({ streams }) => streams.map(({ hasEnded }) => hasEnded()));
    expect(ended).toEqual([
      [false, false],
      [true, true],
      [true, true],
    ]);
  }, 30).finally(() => {
    for (const { cut } of readers.flatMap(({ streams }) => streams)) cut();
  });
  return { streamsEnd: ending };
}

beforeAll(async () => {
  gateway = await startSignInGateway({ TWO_FACTOR: 'off', IDP_URL: undefined });
  [acme, evil] = [await company('acme.example'), await company('evil.example')];
  const path = `/api/v1/identity-providers/${acme.id}/scim-token`;
  const { body } = await acme.owner.api.post<{ token: string }>(path, {});
  scim = new Api(gateway.url, body.token);
  if (IS_NIGHTLY) streamsEnd = (await removeReaders()).streamsEnd;
  // It is awaited by the last test.
  streamsEnd?.catch(() => {});
});
afterAll(async () => {
  await Promise.all([acme.provider.stop(), evil.provider.stop()]);
  await gateway.stop();
});
beforeEach(() => {
  for (const { provider } of [acme, evil]) {
    provider.forgery = {};
    provider.status = 200;
    provider.givesRefreshTokens = false;
    provider.disabled.clear();
  }
});

test('a person signs in with the role of a claim, in the tenant of the provider', async () => {
  const { api } = await signedIn(acme, ada({ groups: ['x', 'admins'] }));
  const { body: me } = await api.get('/api/v1/me');
  expect(me).toMatchObject({
    tenant_id: acme.tenantId,
    role: 'admin',
    issuer: acme.provider.url,
    email: ada().email,
  });
  const again = await signedIn(acme, ada());
  expect((await again.api.get('/api/v1/me')).body).toMatchObject({ id: me.id, role: 'viewer' });
});

test('the methods depend on the domain alone', async () => {
  const ask = (email: string) => new Api(gateway.url, null).post('/api/v1/auth/methods', { email });
  const [known, unknown, other] = await Promise.all(
    [acme.owner.email, `nobody@${acme.domain}`, 'x@elsewhere.example'].map(ask),
  );
  expect(known?.body).toEqual(unknown?.body);
  expect(known?.body).toMatchObject({
    methods: ['password', 'code', 'sso'],
    sso: { name: acme.domain, start_url: expect.stringContaining(`/api/v1/auth/sso/${acme.id}/start`) },
  });
  expect(other?.body).toMatchObject({ methods: ['password', 'code'], sso: null });
});

test('a command line gets the tokens of the gateway, once and with its verifier only', async () => {
  const api = new Api(gateway.url, null);
  const code_verifier = 'v'.repeat(43);
  const redirect_uri = 'http://127.0.0.1:9/auth/callback';
  const begin = async () => {
    const { body } = await api.post<{ authorization_url: string }>('/api/v1/auth/cli/start', {
      redirect_uri,
      state: 'cli-state',
      code_challenge: createHash('sha256').update(code_verifier).digest('base64url'),
      code_challenge_method: 'S256',
      email: ada().email,
    });
    const { location, cookie } = await start(acme, new URL(body.authorization_url).search);
    const back = await callback(acme.provider.authorize(location, { sub: 'ada', ...ada() }), cookie);
    const target = new URL(back.headers.get('location') ?? '');
    expect([target.origin + target.pathname, target.searchParams.get('state')]).toEqual([
      redirect_uri,
      'cli-state',
    ]);
    return target.searchParams.get('code') ?? '';
  };
  const exchange = (code: string, verifier = code_verifier) =>
    api.post<Tokens>('/api/v1/auth/cli/exchange', { code, redirect_uri, code_verifier: verifier });
  const code = await begin();
  const { status, body } = await exchange(code);
  expect(status).toBe(200);
  expect((await new Api(gateway.url, body.access_token).get('/api/v1/me')).body).toMatchObject({
    role: 'viewer',
  });
  expect(refusal(await exchange(code))).toEqual([400, 'SIGN_IN_FAILED']);
  const stolen = await begin();
  expect(refusal(await exchange(stolen, 'w'.repeat(43)))).toEqual([400, 'SIGN_IN_FAILED']);
  expect(refusal(await exchange(stolen))).toEqual([400, 'SIGN_IN_FAILED']);
});

test('the last owner is not lost by a claim', async () => {
  const solo = await company('solo.example');
  const person = { email: 'boss@solo.example', email_verified: true, sub: 'boss' };
  const { api } = await signedIn(solo, { ...person, groups: 'owners' });
  expect((await api.get('/api/v1/me')).body.role).toBe('owner');
  await gateway.database.prepare('delete from accounts where tenant_id = ?').bind(solo.tenantId).run();
  await gateway.database
    .prepare('delete from organization_members where user_id = ?')
    .bind(solo.owner.userId)
    .run();
  const again = await signedIn(solo, person);
  expect((await again.api.get('/api/v1/me')).body.role).toBe('owner');
  await solo.provider.stop();
});

describe('forged and mixed-up attempts', () => {
  /** The same by each kind of person, so that no attempt is refused for the person alone. */
  const PEOPLE = [
    'ada',
    'new',
    'boss',
    'root',
    'with-groups',
    ...Array.from({ length: 7 }, (_, n) => `x${n}`),
  ];

  test('none of the forged ID tokens is accepted', async () => {
    const accepted: string[] = [];
    const forgeries = forgeriesOf(acme.provider, evil.provider);
    const attempts = PEOPLE.flatMap((sub) => forgeries.map(([wrong, make]) => ({ wrong, sub, make })));
    expect(attempts.length).toBeGreaterThanOrEqual(500);
    // By day each forgery is tried once.
    for (const { wrong, sub, make } of firstByDay(forgeries.length, attempts)) {
      acme.provider.forgery = make();
      const response = await signIn(acme, { ...ada(), sub });
      if (response.status < 400) accepted.push(`${wrong} by ${sub}`);
      await response.body?.cancel();
    }
    expect(accepted).toEqual([]);
  });

  test('no response of one sign-in is accepted in another', async () => {
    const one = await start(acme);
    const other = await start(acme);
    const ofEvil = await start(evil);
    const right = acme.provider.authorize(one.location, { sub: 'ada', ...ada() });
    const otherResponse = acme.provider.authorize(other.location, { sub: 'ada', ...ada() });
    const changed = (change: (query: URLSearchParams, url: URL) => void) => {
      const url = new URL(right);
      change(url.searchParams, url);
      return url;
    };
    const [name = '', sealed = ''] = one.cookie.split('=');
    const { searchParams: asked } = new URL(one.location);
    const madeUp = {
      nonce: asked.get('nonce'),
      verifier: 'v'.repeat(43),
      returnTo: '/',
      response: 'json',
      cli: null,
      expiresAt: new Date(Date.now() + 60_000),
    };
    const middle = Math.floor(sealed.length / 2);
    const changedLetter = sealed[middle] === 'A' ? 'B' : 'A';
    const MIXED: [wrong: string, address: URL, cookie: string][] = [
      ['no cookie', right, ''],
      ['a made-up cookie', right, `${name}=${encodeURIComponent(JSON.stringify(madeUp))}`],
      [
        'a changed cookie',
        right,
        `${name}=${sealed.slice(0, middle)}${changedLetter}${sealed.slice(middle + 1)}`,
      ],
      ['a cookie without its end', right, one.cookie.slice(0, -8)],
      ['the cookie of another state', right, other.cookie],
      // Nothing of the right sign-in is used up by it.
      ['the content of the cookie of another state', right, `${name}=${other.cookie.split('=')[1]}`],
      ['the cookie of another provider', right, ofEvil.cookie],
      [
        'the state of another sign-in',
        changed((query) => query.set('state', new URL(otherResponse).searchParams.get('state') ?? '')),
        one.cookie,
      ],
      ['two states', changed((query) => query.append('state', 'x')), one.cookie],
      ['no state', changed((query) => query.delete('state')), one.cookie],
      [
        'the callback of the other provider',
        changed((_, url) => {
          url.pathname = `/api/v1/auth/sso/${evil.id}/callback`;
        }),
        one.cookie,
      ],
      [
        'an unknown provider',
        changed((_, url) => {
          url.pathname = `/api/v1/auth/sso/${crypto.randomUUID()}/callback`;
        }),
        one.cookie,
      ],
    ];
    const accepted: string[] = [];
    for (const [wrong, address, cookie] of MIXED)
      if ((await callback(address, cookie)).status < 400) accepted.push(wrong);
    expect(accepted).toEqual([]);
    expect((await callback(right, one.cookie)).status).toBe(200);
    expect((await callback(right, one.cookie)).status).toBe(400);
    const secondCode = acme.provider.authorize(one.location, { sub: 'ada', ...ada() });
    expect((await callback(secondCode, one.cookie)).status).toBe(400);
    const QUERIES: [wrong: string, change: (query: URLSearchParams) => void][] = [
      ['iss of the other provider', (query) => query.set('iss', evil.provider.url)],
      ['no iss', (query) => query.delete('iss')],
      ['two codes', (query) => query.append('code', 'x')],
      ['no code', (query) => query.delete('code')],
      ['an unknown code', (query) => query.set('code', 'x')],
      ['an error', (query) => query.set('error', 'access_denied')],
      [
        'a code of another sign-in',
        (query) => query.set('code', otherResponse.searchParams.get('code') ?? ''),
      ],
    ];
    for (const [wrong, change] of QUERIES) {
      const started = await start(acme);
      const address = acme.provider.authorize(started.location, { sub: 'ada', ...ada() });
      change(address.searchParams);
      if ((await callback(address, started.cookie)).status < 400) accepted.push(wrong);
    }
    expect(accepted).toEqual([]);
  });
});

test('the start of a sign-in is sealed: nobody reads it, and nobody makes one up', async () => {
  const { location, cookie } = await start(acme);
  const nonce = new URL(location).searchParams.get('nonce') ?? '';
  expect(nonce).not.toBe('');
  const text = decodeURIComponent(cookie);
  for (const secret of [nonce, 'verifier', 'expiresAt']) expect(text).not.toContain(secret);
  // A command line of somebody else would get the code of the session.
  const cli = {
    redirectUri: 'http://127.0.0.1:9/auth/callback',
    state: 'x',
    challenge: 'y'.repeat(43),
    expiresAt: new Date(Date.now() + 60_000),
  };
  for (const forged of [JSON.stringify(cli), Buffer.from(JSON.stringify(cli)).toString('base64url')]) {
    const path = `/api/v1/auth/sso/${acme.id}/start?${new URLSearchParams({ cli: forged })}`;
    const response = await fetch(gateway.url + path, { redirect: 'manual' });
    expect([response.status, ((await response.json()) as { error: string }).error]).toEqual([
      400,
      'SIGN_IN_FAILED',
    ]);
  }
});

test('a key that the provider has withdrawn since the last sign-in is not accepted', async () => {
  await signedIn(acme, ada());
  const { keys } = acme.provider;
  acme.provider.keys = evil.provider.keys;
  expect((await signIn(acme, ada())).status).toBeGreaterThanOrEqual(400);
  acme.provider.keys = keys;
  await signedIn(acme, ada());
});

test('the domain of one tenant cannot be verified by another', async () => {
  const path = `/platform/v1/tenants/${evil.tenantId}/identity-providers/${evil.id}`;
  const platform = new Api(gateway.url, PLATFORM_SECRET);
  const domains = [evil.domain, acme.domain];
  expect((await platform.call('PATCH', path, { body: { domains } })).status).toBe(200);
  const taken = await platform.call('POST', `${path}/domains/${acme.domain}/verify`);
  expect(refusal(taken)).toEqual([409, 'DOMAIN_TAKEN']);
  const response = await signIn(evil, { email: `ada@${acme.domain}`, email_verified: true });
  expect(response.status).toBe(403);
  expect((await evil.owner.api.get(`/api/v1/identity-providers/${acme.id}`)).status).toBe(404);
});

test('with the provider away, new sign-ins get 503, and signed-in people continue until their refresh', async () => {
  acme.provider.givesRefreshTokens = true;
  const person = await signedIn(acme, ada({ sub: 'stays' }));
  acme.provider.status = 503;
  const away = await fetch(`${gateway.url}/api/v1/auth/sso/${acme.id}/start`, { redirect: 'manual' });
  expect([away.status, ((await away.json()) as { error: string }).error]).toEqual([503, 'IDP_UNAVAILABLE']);
  expect((await person.api.get('/api/v1/me')).status).toBe(200);
  const renew = (refresh_token: string) =>
    new Api(gateway.url, null).post<Tokens>('/api/v1/auth/refresh', { refresh_token });
  const early = await renew(person.refresh_token);
  expect([early.status, acme.provider.refreshes]).toEqual([200, 0]);
  await gateway.database.prepare('update sessions set checked_at = 0 where person_id is not null').run();
  expect(refusal(await renew(early.body.refresh_token))).toEqual([503, 'IDP_UNAVAILABLE']);
  acme.provider.status = 200;
  const later = await renew(early.body.refresh_token);
  expect([later.status, acme.provider.refreshes]).toEqual([200, 1]);
  await gateway.database.prepare('update sessions set checked_at = 0 where person_id is not null').run();
  acme.provider.disabled.add('stays');
  expect(refusal(await renew(later.body.refresh_token))).toEqual([401, 'REFRESH_TOKEN_WRONG']);
  const left = await gateway.database
    .prepare(
      "select count(*) n from sessions where person_id in (select id from provider_people where subject = 'stays')",
    )
    .first<{ n: number }>();
  expect(left?.n).toBe(0);
});

describe('SCIM', () => {
  test('a person of SCIM is the one who signs in, and loses everything when it is disabled', async () => {
    const created = await scim.post<{ id: string }>('/scim/v2/Users', {
      schemas: ['urn:ietf:params:scim:schemas:core:2.0:User'],
      userName: 'Grace@acme.example',
      externalId: 'grace-sub',
      name: { givenName: 'Grace' },
    });
    expect(created.status).toBe(201);
    const grace = { sub: 'grace-sub', email: 'grace@acme.example', email_verified: true, groups: 'admins' };
    const { api, access_token, refresh_token } = await signedIn(acme, grace);
    const key = await api.post<{ key: string }>('/api/v1/api-keys', {
      name: 'mine',
      role: 'admin',
      scopes: ['read'],
      expires_in_days: 1,
    });
    expect(key.status).toBe(201);
    const listed = await scim.get<{ Resources: { id: string; userName: string }[] }>(
      '/scim/v2/Users?filter=userName%20eq%20%22GRACE@acme.example%22',
    );
    expect(listed.body.Resources).toMatchObject([{ id: created.body.id, userName: 'grace@acme.example' }]);
    const patch = (value: unknown) =>
      scim.call('PATCH', `/scim/v2/Users/${created.body.id}`, {
        body: {
          schemas: ['urn:ietf:params:scim:api:messages:2.0:PatchOp'],
          Operations: [{ op: 'Replace', path: 'active', value }],
        },
      });
    // What an isolate does that knows the person since just before.
    const before = new Date();
    const identity = await identityOf(api, access_token);
    const seenAfter = async (ms: number) =>
      (await materialize(gateway.database, identity, new Date(before.getTime() + ms))).ok;
    expect(await seenAfter(0)).toBe(true);
    expect(await patch('False')).toMatchObject({ status: 200, body: { active: false } });
    expect(await seenAfter(30_000)).toBe(false);
    const { sub } = decodeJwt(access_token);
    const member = await gateway.database
      .prepare('select 1 from organization_members where user_id in (select id from users where gid = ?)')
      .bind(sub)
      .first();
    expect(member).toBeNull();
    const renewal = () => new Api(gateway.url, null).post('/api/v1/auth/refresh', { refresh_token });
    expect(refusal(await renewal())).toEqual([401, 'REFRESH_TOKEN_WRONG']);
    const counts = await gateway.database
      .prepare(
        "select (select count(*) from api_keys where name = 'mine') keys, (select count(*) from sessions where person_id = ?) sessions",
      )
      .bind(created.body.id)
      .first();
    expect(counts).toEqual({ keys: 0, sessions: 0 });
    expect((await signIn(acme, grace)).status).toBe(403);
    expect(await patch(true)).toMatchObject({ status: 200, body: { active: true } });
    expect(refusal(await renewal())).toEqual([401, 'REFRESH_TOKEN_WRONG']);
    expect((await signIn(acme, grace)).status).toBe(200);
    expect((await scim.delete(`/scim/v2/Users/${created.body.id}`)).status).toBe(204);
    expect((await scim.get(`/scim/v2/Users/${created.body.id}`)).status).toBe(404);
    expect((await signIn(acme, grace)).status).toBe(403);
  });

  test('groups map to roles, and errors have the form of SCIM', async () => {
    const { body: user } = await scim.post<{ id: string }>('/scim/v2/Users', {
      userName: 'edith@acme.example',
    });
    const { api } = await signedIn(acme, { sub: 'edith', email: 'edith@acme.example', email_verified: true });
    expect((await api.get('/api/v1/me')).body.role).toBe('viewer');
    const { body: group } = await scim.post<{ id: string }>('/scim/v2/Groups', {
      displayName: 'admins',
      members: [{ value: user.id }],
    });
    const role = () =>
      gateway.database
        .prepare('select role from provider_people where id = ?')
        .bind(user.id)
        .first<{ role: string }>();
    expect((await role())?.role).toBe('admin');
    const removed = await scim.call('PATCH', `/scim/v2/Groups/${group.id}`, {
      body: { Operations: [{ op: 'remove', path: `members[value eq "${user.id}"]` }] },
    });
    expect(removed.status).toBe(200);
    expect((await role())?.role).toBe('viewer');
    const again = await scim.post<Record<string, unknown>>('/scim/v2/Users', {
      userName: 'edith@acme.example',
    });
    expect([again.status, again.body]).toMatchObject([409, { status: '409', scimType: 'uniqueness' }]);
    const wrong = await scim.get<Record<string, unknown>>('/scim/v2/Users?filter=nonsense');
    expect([wrong.status, wrong.body.scimType, wrong.headers.get('content-type')]).toEqual([
      400,
      'invalidFilter',
      'application/scim+json',
    ]);
    expect((await new Api(gateway.url, 'bgscim_wrong').get('/scim/v2/Users')).status).toBe(401);
    expect((await scim.get('/scim/v2/ServiceProviderConfig')).status).toBe(200);
  });

  test('a user that is deleted while it is replaced stays deleted', async () => {
    for (let round = 0; round < 10; round++) {
      const body = { userName: `racer-${round}@acme.example` };
      const path = `/scim/v2/Users/${(await scim.post<{ id: string }>('/scim/v2/Users', body)).body.id}`;
      const [deleted] = await Promise.all([scim.delete(path), scim.call('PUT', path, { body })]);
      expect(deleted.status).toBe(204);
      expect((await scim.get(path)).status).toBe(404);
    }
  });
});

test('without a refresh token of the provider, a session ends after 12 hours, whatever is renewed', async () => {
  const { api, access_token, refresh_token } = await signedIn(acme, ada({ sub: 'short' }));
  const identity = await identityOf(api, access_token);
  const session = gateway.database.prepare('select created_at, expires_at from sessions where id = ?');
  const times = () => session.bind(identity.sessionId).first<{ created_at: number; expires_at: number }>();
  const before = await times();
  const end = before?.expires_at ?? 0;
  expect(end - (before?.created_at ?? 0)).toBe(12 * 3_600_000);
  const renewed = await new Api(gateway.url, null).post<Tokens>('/api/v1/auth/refresh', { refresh_token });
  expect(await times()).toEqual(before);
  for (const token of [refresh_token, renewed.body.refresh_token])
    expect(decodeJwt(token).exp).toBe(Math.floor(end / 1000));
  const seenAt = async (at: number) => (await materialize(gateway.database, identity, new Date(at))).ok;
  expect([await seenAt(end - 31_000), await seenAt(end)]).toEqual([true, false]);
});

test('required sign-in is refused until it was tried, and then nothing else works but the recovery code, once', async () => {
  const ask = (sso_required: boolean) =>
    evil.owner.api.call<{ recovery_code: string }>('PATCH', '/api/v1/tenant', { body: { sso_required } });
  expect(refusal(await ask(true))).toEqual([409, 'SSO_NOT_TRIED']);
  await signedIn(evil, { sub: 'owner', email: evil.owner.email, email_verified: true, groups: 'owners' });
  const { status, body } = await ask(true);
  expect([status, body]).toMatchObject([200, { sso_required: true, recovery_code: expect.any(String) }]);
  expect(refusal(await logIn(gateway, evil.owner.email))).toEqual([403, 'SSO_REQUIRED']);
  expect(refusal(await logIn(gateway, `nobody@${evil.domain}`))).toEqual([403, 'SSO_REQUIRED']);
  evil.provider.status = 503;
  const recover = (code: string) =>
    new Api(gateway.url, null).post('/api/v1/auth/sso/recover', { email: evil.owner.email, code });
  expect(refusal(await recover('aaaa-aaaa-aaaa-aaaa'))).toEqual([401, 'CODE_WRONG']);
  expect((await recover(body.recovery_code)).status).toBe(200);
  expect(refusal(await recover(body.recovery_code))).toEqual([401, 'CODE_WRONG']);
  const mail = await eventually(async () => {
    const found = gateway.mails().find(({ subject }) => /recovery code of the owners was used/.test(subject));
    expect(found).toBeDefined();
    return found;
  });
  expect(mail?.to).toBe(evil.owner.email);
  const audited = await gateway.database
    .prepare("select count(*) n from audit_events where name = 'owner_recovery_code.used' and tenant_id = ?")
    .bind(evil.tenantId)
    .first<{ n: number }>();
  expect(audited?.n).toBe(1);
});

test.runIf(IS_NIGHTLY)(
  'the open streams of a person end within 30 seconds after SCIM disables or deletes it',
  async () => {
    await streamsEnd;
  },
);
