import { UnsecuredJWT } from 'jose';
import { describe, expect, inject, test } from 'vitest';
import { Api, type ApiResponse } from '../support/api.ts';
import { Browser } from '../support/sign-in/browser.ts';
import { deliveredMails } from '../support/sign-in/mails.ts';
import { ownTokens } from '../support/sign-in/own-tokens.ts';
import { signUp } from '../support/sign-in/sign-in.ts';
import { readStackFile } from '../support/stack/started-stack.ts';
import { apiOf, tenantNamed, tokenOf } from '../support/tenants.ts';

const { url, devDir } = inject('stack');
const site = { url, mails: () => deliveredMails({ state: readStackFile(devDir) }) };
const own = ownTokens({ url, devDir });
const anybody = new Api(url, null);

interface TokenBody {
  access_token: string;
  refresh_token: string;
  token_type: string;
  expires_in: number;
}

const renew = (refresh_token: string) => anybody.post<TokenBody>('/api/v1/auth/refresh', { refresh_token });
const bearer = (token: string) => new Api(url, token);
const signOut = (token: string, body?: unknown, headers = {}) =>
  bearer(token).call('POST', '/api/v1/auth/logout', { ...(body !== undefined && { body }), headers });

async function renewed(refresh_token: string): Promise<TokenBody> {
  const { status, body } = await renew(refresh_token);
  expect(status, JSON.stringify(body)).toBe(200);
  return body;
}

function expectRefused({ status, headers, body }: ApiResponse<unknown>): void {
  expect([status, body]).toMatchObject([401, { error: 'REFRESH_TOKEN_WRONG' }]);
  expect(headers.get('www-authenticate')).toBe('Bearer');
}

/** The names of the session events in the audit log of a tenant. */
async function eventsOf(token: string): Promise<string[]> {
  type Body = { audit_events: { name: string; actor_email: string | null }[] };
  const { body } = await bearer(token).get<Body>('/api/v1/audit-events?limit=100');
  return body.audit_events.filter(({ name }) => name.startsWith('session.')).map(({ name }) => name);
}

let people = 0;
/** Signs up a new account. */
async function newcomer() {
  people += 1;
  const { access_token, refresh_token } = await signUp(
    site,
    `${tenantNamed(`session-${people}`)}@example.com`,
  );
  return { access: access_token ?? '', refresh: refresh_token ?? '' };
}

/** Signs in an account of the provider with a browser. */
async function guest(email = 'ada@example.com') {
  const browser = new Browser(() => true);
  const { response } = await browser.signIn(`${url}/api/v1/auth/idp/login`, email);
  const { access_token, refresh_token } = (await response.json()) as TokenBody;
  return { access: access_token, refresh: refresh_token };
}

describe('the refresh of a session of the gateway', () => {
  test('returns a new pair of tokens that the API accepts', async () => {
    const { access, refresh } = await newcomer();
    const body = await renewed(refresh);
    expect(body).toEqual({
      access_token: expect.stringMatching(/^eyJ/),
      refresh_token: expect.stringMatching(/^eyJ/),
      token_type: 'bearer',
      expires_in: expect.any(Number),
    });
    expect(body.expires_in).toBeGreaterThan(890);
    expect(body.expires_in).toBeLessThanOrEqual(900);
    expect(body.refresh_token).not.toBe(refresh);
    for (const token of [access, body.access_token]) {
      expect((await bearer(token).get('/api/v1/projects')).status).toBe(200);
    }
    await renewed(body.refresh_token);
  });

  test('by two concurrent requests: one succeeds, the other gets 401, and the session continues', async () => {
    const { access, refresh } = await newcomer();
    const responses = await Promise.all([renew(refresh), renew(refresh)]);
    const [accepted] = responses.filter(({ status }) => status === 200);
    const [refused] = responses.filter(({ status }) => status !== 200);
    if (!accepted || !refused) throw new Error('expected one of each');
    expectRefused(refused);
    await renewed(accepted.body.refresh_token);
    expect(await eventsOf(access)).toEqual([]);
  });

  test('is refused for every other token', async () => {
    const { access } = await newcomer();
    const [forged = ['', own.refresh]] = await own.forgeries(own.refresh);
    const tokens = [
      access,
      await own.preAuth(),
      await own.refresh(),
      await forged[1](),
      new UnsecuredJWT({}).setIssuer(url).encode(),
    ];
    for (const token of tokens) expectRefused(await renew(token));
  });
});

describe('the refresh of a sign-in at the provider', () => {
  test('returns a new PASETO that the API accepts', async () => {
    const { refresh } = await guest();
    const body = await renewed(refresh);
    expect(body).toEqual({
      access_token: expect.stringMatching(/^v4\.public\./),
      refresh_token: expect.any(String),
      token_type: 'bearer',
      expires_in: expect.any(Number),
    });
    expect(body.expires_in).toBeGreaterThan(3500);
    const { status, body: me } = await bearer(body.access_token).get('/api/v1/me');
    expect([status, me]).toMatchObject([200, { email: 'ada@example.com', role: 'owner' }]);
    await renewed(body.refresh_token);
  });

  test.each([
    ['an unknown token', () => 'unknown'],
    ['its access token', () => tokenOf({ tenant: 'acme' })],
    ['a JWT without an issuer', () => new UnsecuredJWT({}).encode()],
    ['a JWT of another issuer', () => new UnsecuredJWT({}).setIssuer(`${url}/`).encode()],
  ])('is refused for %s', async (_, token) => expectRefused(await renew(await token())));
});

test.each([
  [422, '{}'],
  [422, '{"refresh_token":""}'],
  [422, '{"refresh_token":7}'],
  [422, `{"refresh_token":"${'x'.repeat(8193)}"}`],
  [422, '{"refresh_token":"x","grant_type":"refresh_token"}'],
  [400, ''],
])('refresh: %i for %s', async (status, body) => {
  expect((await anybody.call('POST', '/api/v1/auth/refresh', { body })).status).toBe(status);
});

describe('logout', () => {
  test('of a session of the gateway revokes its refresh tokens; its access tokens end within 30 s', async () => {
    const { access, refresh } = await newcomer();
    const next = await renewed(refresh);
    const response = await signOut(access);
    expect([response.status, response.body]).toEqual([204, null]);
    for (const token of [next.refresh_token, refresh]) expectRefused(await renew(token));
    // 401 from the moment at which the gateway has read the end of the session.
    expect([204, 401]).toContain((await signOut(next.access_token)).status);
    expect(await eventsOf(access)).toEqual(['session.ended']);
  });

  test('ends only the session of its bearer, even with the token of another session', async () => {
    const { access, refresh } = await newcomer();
    const other = await newcomer();
    expect((await signOut(access, { refresh_token: other.refresh })).status).toBe(204);
    expectRefused(await renew(refresh));
    await renewed(other.refresh);
  });

  test('of all sessions ends each of them', async () => {
    const { access, refresh } = await newcomer();
    const { body } = await bearer(access).get<{ sessions: object[] }>('/api/v1/auth/sessions');
    expect(body.sessions).toMatchObject([{ is_current: true }]);
    expect((await bearer(access).delete('/api/v1/auth/sessions')).status).toBe(204);
    expectRefused(await renew(refresh));
  });

  test('of a sign-in at the provider revokes the refresh token there', async () => {
    const { access, refresh } = await guest('edsger@example.com');
    expect((await signOut(access)).status).toBe(204);
    const { refresh_token } = await renewed(refresh);
    expect((await signOut(access, { refresh_token })).status).toBe(204);
    expectRefused(await renew(refresh_token));
    expect(await eventsOf(access)).toEqual(['session.ended']);
    expect((await bearer(access).get('/api/v1/me')).status).toBe(200);
  });

  test.each([
    [204, '', { 'Content-Type': 'application/json' }],
    [204, '', { 'Content-Type': 'text/plain' }],
    [204, '{}', {}],
    [422, '{"refresh_token":null}', {}],
    [422, '{"everywhere":true}', {}],
    [422, '[]', {}],
    [400, '{', {}],
  ])('%i for %s with %o', async (status, body, headers) => {
    const response = await signOut(await tokenOf({ tenant: 'acme' }), body, headers);
    expect(response.status).toBe(status);
  });

  test('is allowed without a tenant', async () => {
    expect((await signOut(await tokenOf({ tenant: null }), { refresh_token: 'unknown' })).status).toBe(204);
  });
});

describe('me', () => {
  const scopes = ['branchgate:read', 'branchgate:write'];
  const issuer = readStackFile(devDir).idp_url;

  test.each(['owner', 'admin', 'operator', 'viewer', 'guest'])('of a user with the role %s', async (role) => {
    const api = await apiOf({ tenant: 'mine', role });
    const { status, body } = await api.get('/api/v1/me');
    expect([status, body]).toEqual([
      200,
      {
        id: expect.stringMatching(/^[0-9a-f-]{36}$/),
        actor_id: body.id,
        email: `${role}@mine.example`,
        role,
        scopes,
        tenant_id: tenantNamed('mine'),
        issuer,
      },
    ]);
    expect((await api.get('/api/v1/me')).body).toEqual(body);
  });

  test('of a user without a tenant has no ID', async () => {
    const { status, body } = await (await apiOf({ tenant: null, scope: 'read' })).get('/api/v1/me');
    expect([status, body]).toEqual([
      200,
      {
        id: null,
        actor_id: null,
        email: 'owner@nowhere.example',
        role: 'owner',
        scopes: ['branchgate:read'],
        tenant_id: null,
        issuer,
      },
    ]);
  });

  test('of an account of the gateway, which owns a tenant', async () => {
    const { access } = await newcomer();
    const { body } = await bearer(access).get('/api/v1/me');
    expect(body).toMatchObject({ role: 'owner', scopes, tenant_id: expect.any(String), issuer: url });
    const { body: project } = await bearer(access).post('/api/v1/projects', { name: 'Mine' });
    expect(project).toMatchObject({ created_by: body.id, tenant_id: body.tenant_id });
  });
});
