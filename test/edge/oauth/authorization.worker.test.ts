import type { ServerResponse } from 'node:http';
import { eq, sql } from 'drizzle-orm';
import { decodeJwt, SignJWT, UnsecuredJWT } from 'jose';
import { beforeAll, describe, expect, test } from 'vitest';
import { signOwnToken } from '../../../edge/authentication/own-tokens.ts';
import { identityProviders, providerDomains, signInPolicies } from '../../../edge/database/company-schema.ts';
import { oauthClients, oauthGrants } from '../../../edge/database/oauth-schema.ts';
import { accounts } from '../../../edge/database/people-schema.ts';
import { auditEvents, organizationMembers, users } from '../../../edge/database/schema.ts';
import { sessions } from '../../../edge/database/session-schema.ts';
import { CACHED_MS, machineRecord } from '../../../edge/machines/authenticate-machine.ts';
import { deleteUnusedClients } from '../../../edge/oauth/clients.ts';
import { loginName } from '../../../shared/branch/login.ts';
import { Api } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import {
  authorize,
  CALLBACK,
  type CONSENT,
  callMcp,
  callTool,
  consent,
  newPkce,
  OAUTH,
  type Parameters,
  register,
  requestFor,
  sendForm,
  signInClient,
  startDocuments,
  tokensOf,
} from '../../support/oauth/client-app.ts';
import type { Ids } from '../../support/operations.ts';
import { sharedTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

const BASE = SETTINGS.BASE_URL;
const TENANT = 'acme';
const KEYS = [{ id: '1', bytes: new Uint8Array(32) }];
const OWN = { SERVICE_NAME: 'branchgate', BASE_URL: BASE, JWT_KEYS: KEYS };
const DAY_MS = 86_400_000;
const LOOPBACK = 'http://127.0.0.1/callback';

let gateway: TripsGateway;
let ids: Ids;
let owner: Api;
let project: string;

beforeAll(async () => {
  gateway = await sharedTripsGateway();
  ids = await gateway.makeThings();
  project = ids.project_id ?? '';
  owner = gateway.api;
});

const person = async (gid: string, role: string, tenant = TENANT) =>
  new Api(gateway.url, await gateway.tokenOf({ gid, role, tenant }));

/** An account of the tenant with a session of its own. */
async function newAccount(role: string, domain = 'example.org', tenantId = TENANT) {
  const id = crypto.randomUUID();
  const sid = crypto.randomUUID();
  const now = new Date();
  const times = { createdAt: now, updatedAt: now };
  const email = `${id}@${domain}`;
  const account = { id, email, name: 'Ada', passwordHash: 'x', role, tenantId, ...times };
  await gateway.db.insert(accounts).values(account);
  const soon = new Date(now.getTime() + 600_000);
  const session = { id: sid, accountId: id, lastUsedAt: now, expiresAt: soon, createdAt: now };
  await gateway.db.insert(sessions).values(session);
  const claims = {
    sub: id,
    email,
    role,
    scp: ['branchgate:read', 'branchgate:write'],
    tenant_id: tenantId,
    sid,
  };
  const life = { issuedAt: now, expiresAt: soon };
  const api = new Api(gateway.url, await signOwnToken(OWN, 'access', claims, life));
  const { body: me } = await api.get<{ id: string }>('/api/v1/me');
  return { api, id, sid, userId: me.id };
}

const signedIn = async (by = owner, more: Partial<typeof CONSENT> = {}) => {
  const client = await signInClient(gateway.url, BASE, by, more);
  return { ...client, tokens: await tokensOf(gateway.url, client.form) };
};
const refreshForm = (client_id: string, refresh_token: string): Parameters => ({
  grant_type: 'refresh_token',
  client_id,
  refresh_token,
  resource: `${BASE}/mcp`,
});
const token = (form: Parameters | string) => sendForm(gateway.url, 'token', form);
const grants = () => gateway.db.select().from(oauthGrants);
const revocations = async (grantId: string) => {
  const rows = await gateway.db.select().from(auditEvents).where(eq(auditEvents.name, 'oauth_grant.revoked'));
  return rows.filter(({ metadata }) => metadata.grant_id === grantId);
};

test('a client finds its way from a 401 to the endpoints', async () => {
  const refused = await callMcp(gateway.url, null, 'ping', {}, `?project_id=${project}`);
  expect(refused.status).toBe(401);
  const challenge = refused.headers.get('www-authenticate') ?? '';
  expect(challenge).toMatch(/^Bearer resource_metadata=".*", scope="branchgate:read branchgate:write"$/);
  const wrong = await callMcp(gateway.url, 'wrong');
  expect(wrong.headers.get('www-authenticate')).toMatch(/^Bearer error="invalid_token", resource_metadata="/);
  const address = /resource_metadata="([^"]+)"/.exec(challenge)?.[1] ?? '';
  expect(address).toBe(`${BASE}/.well-known/oauth-protected-resource/mcp?project_id=${project}`);
  const anybody = new Api(gateway.url, null);
  const { body: resource } = await anybody.get(address.slice(BASE.length));
  expect(resource).toMatchObject({
    resource: `${BASE}/mcp?project_id=${project}`,
    authorization_servers: [BASE],
    bearer_methods_supported: ['header'],
  });
  for (const path of ['/.well-known/oauth-protected-resource', '/.well-known/oauth-protected-resource/mcp'])
    expect((await anybody.get(path)).body).toMatchObject({ resource: `${BASE}/mcp` });
  const { body: server } = await anybody.get('/.well-known/oauth-authorization-server');
  expect(server).toMatchObject({
    issuer: BASE,
    authorization_endpoint: `${BASE}${OAUTH}/authorize`,
    token_endpoint: `${BASE}${OAUTH}/token`,
    registration_endpoint: `${BASE}${OAUTH}/register`,
    revocation_endpoint: `${BASE}${OAUTH}/revoke`,
    response_types_supported: ['code'],
    grant_types_supported: ['authorization_code', 'refresh_token'],
    token_endpoint_auth_methods_supported: ['none'],
    code_challenge_methods_supported: ['S256'],
    authorization_response_iss_parameter_supported: true,
    client_id_metadata_document_supported: true,
  });
  expect((await anybody.get('/.well-known/oauth-nothing')).status).toBe(404);
});

test('a client that a person signed in uses its branches, and nothing else', async () => {
  const operator = await person('agent-operator', 'operator');
  const { id: own } = await operator.project('Of agents');
  const pkce = newPkce();
  const { body: client } = await register(gateway.url, {
    client_name: 'Agent\u202e',
    redirect_uris: [LOOPBACK],
  });
  const redirect = 'http://127.0.0.1:49152/callback';
  const request = {
    ...requestFor(BASE, client.client_id, pkce, redirect),
    resource: `${BASE}/mcp?project_id=${own}`,
  };
  const led = await authorize(gateway.url, request);
  expect(led.status).toBe(302);
  const page = new URL(led.headers.get('location') ?? '');
  expect([page.origin, page.pathname]).toEqual([BASE, '/authorize']);
  const handed = Buffer.from(page.searchParams.get('request') ?? '', 'base64url').toString();
  expect(JSON.parse(handed)).toEqual(request);
  const preview = await operator.post('/api/v1/oauth-grants/preview', { request });
  expect(preview.body).toMatchObject({
    client_name: 'Agent\\u202e',
    redirect_host: '127.0.0.1:49152',
    is_loopback: true,
    scopes: ['read', 'write'],
    project_id: own,
    may_give_full_data: false,
    refused_uri: `${redirect}?error=access_denied&state=the+state&iss=${encodeURIComponent(BASE)}`,
  });
  expect((await consent(operator, request, { project_id: null })).status).toBe(422);
  const agreed = await consent(operator, request, { project_id: own });
  expect(agreed.status).toBe(201);
  const back = new URL(agreed.body.redirect_uri);
  expect(back.origin + back.pathname).toBe(redirect);
  expect([back.searchParams.get('state'), back.searchParams.get('iss')]).toEqual(['the state', BASE]);
  const tokens = await token({
    grant_type: 'authorization_code',
    client_id: client.client_id,
    code: back.searchParams.get('code') ?? '',
    redirect_uri: redirect,
    code_verifier: pkce.verifier,
    resource: request.resource,
  });
  expect(tokens.body).toEqual({
    access_token: expect.any(String),
    refresh_token: expect.any(String),
    token_type: 'Bearer',
    expires_in: 900,
    scope: 'branchgate:read branchgate:write',
  });
  expect(tokens.headers.get('cache-control')).toBe('no-store');
  const access = tokens.body.access_token ?? '';
  expect(decodeJwt(access).aud).toBe(`${BASE}/mcp`);
  // The project of the grant is that of the tools.
  const made = await callTool(gateway.url, access, 'create_branch', { name: 'agent-1' });
  expect(made.structuredContent, made.text).toMatchObject({ branch_name: 'agent-1' });
  for (const [tool, args] of [
    ['create_branch', { name: 'other' }],
    ['get_connection', { branch: 'main' }],
    ['list_branches', { project_id: project }],
  ] as const)
    expect(await callTool(gateway.url, access, tool, args)).toMatchObject({
      isError: true,
      text: expect.stringContaining('NOT_FOUND'),
    });
  const { id } = agreed.body.grant;
  const events = await gateway.db.select().from(auditEvents).where(eq(auditEvents.actorId, id));
  expect(events).toContainEqual(expect.objectContaining({ name: 'branch.created', actorType: 'grant' }));
  const [created] = (await gateway.db.select().from(auditEvents)).filter(
    ({ name, metadata }) => name === 'oauth_grant.created' && metadata.grant_id === id,
  );
  expect(created).toMatchObject({
    actorType: 'user',
    projectId: own,
    metadata: { branch_pattern: 'agent-*' },
  });

  // Listed to its person and to owners, and to nobody else.
  const listed = async (by: Api) => {
    const { body } = await by.get<{ oauth_grants: { id: string }[] }>('/api/v1/oauth-grants?limit=100');
    return body.oauth_grants.find((grant) => grant.id === id);
  };
  expect(await listed(operator)).toMatchObject({
    client_name: 'Agent\\u202e',
    redirect_host: '127.0.0.1:49152',
  });
  expect(await listed(owner)).toBeDefined();
  const others = [
    await person('agent-other', 'operator'),
    await person('agent-elsewhere', 'owner', 'elsewhere'),
  ];
  for (const other of others) {
    expect(await listed(other)).toBeUndefined();
    expect((await other.delete(`/api/v1/oauth-grants/${id}`)).status).toBe(404);
  }
  expect((await operator.delete(`/api/v1/oauth-grants/${id}`)).status).toBe(204);
  expect(await revocations(id)).toMatchObject([{ actorType: 'user', metadata: { reason: 'revoked' } }]);
  const after = await token(refreshForm(client.client_id, tokens.body.refresh_token ?? ''));
  expect([after.status, after.body.error]).toEqual([400, 'invalid_grant']);
  await eventually(
    async () => expect((await callMcp(gateway.url, access)).status).toBe(401),
    CACHED_MS / 1000 + 5,
  );
});

const DOCUMENT = 'https://agent.example.com/client.json';
const loopback = (uri: string): Parameters => ({ redirect_uri: uri, client_id: 'loopback' });

/** What makes a right authorization request wrong, and the error. `loopback`: the client that listens on its computer. */
const WRONG_REQUESTS: Record<string, readonly [change: Parameters, error: string]> = {
  'no response_type': [{ response_type: undefined }, 'unsupported_response_type'],
  'the implicit grant': [{ response_type: 'token' }, 'unsupported_response_type'],
  'an ID token': [{ response_type: 'id_token' }, 'unsupported_response_type'],
  'a hybrid response': [{ response_type: 'code token' }, 'unsupported_response_type'],
  'a response in the fragment': [{ response_mode: 'fragment' }, 'invalid_request'],
  'a response as a form': [{ response_mode: 'form_post' }, 'invalid_request'],
  'a request object': [{ request: 'eyJhbGciOiJub25lIn0.e30.' }, 'invalid_request'],
  'the address of a request object': [{ request_uri: 'https://evil.example/request' }, 'invalid_request'],
  'a state that is too long': [{ state: 'x'.repeat(513) }, 'invalid_request'],
  'no client': [{ client_id: undefined }, 'invalid_request'],
  'an empty client': [{ client_id: '' }, 'invalid_request'],
  'an unknown client': [{ client_id: crypto.randomUUID() }, 'invalid_client'],
  'a client that is too long': [{ client_id: `https://a.example/${'x'.repeat(256)}` }, 'invalid_request'],
  'a document over plain HTTP': [{ client_id: 'http://agent.example.com/client.json' }, 'invalid_request'],
  'a document without a path': [{ client_id: 'https://agent.example.com/' }, 'invalid_request'],
  'a document with a query': [{ client_id: `${DOCUMENT}?a=1` }, 'invalid_request'],
  'a document with a fragment': [{ client_id: `${DOCUMENT}#a` }, 'invalid_request'],
  'a document with a user': [{ client_id: 'https://u@agent.example.com/client.json' }, 'invalid_request'],
  'a document by dots': [{ client_id: 'https://agent.example.com/a/../client.json' }, 'invalid_request'],
  'a document in capitals': [{ client_id: 'https://AGENT.example.com/client.json' }, 'invalid_request'],
  'a document on a private network': [{ client_id: 'https://10.0.0.1/client.json' }, 'invalid_request'],
  'a document at the metadata of a cloud': [{ client_id: 'https://169.254.169.254/x' }, 'invalid_request'],
  'a document at a local name': [{ client_id: 'https://db.internal/client.json' }, 'invalid_request'],
  'no redirect': [{ redirect_uri: undefined }, 'invalid_request'],
  'the redirect of another client': [{ redirect_uri: LOOPBACK }, 'invalid_request'],
  'another path': [{ redirect_uri: `${CALLBACK}2` }, 'invalid_request'],
  'a longer path': [{ redirect_uri: `${CALLBACK}/more` }, 'invalid_request'],
  'a trailing slash': [{ redirect_uri: `${CALLBACK}/` }, 'invalid_request'],
  'a query': [{ redirect_uri: `${CALLBACK}?to=evil` }, 'invalid_request'],
  'a fragment': [{ redirect_uri: `${CALLBACK}#evil` }, 'invalid_request'],
  'dots in the path': [{ redirect_uri: 'https://agent.example.com/x/../callback' }, 'invalid_request'],
  'an encoded path': [{ redirect_uri: 'https://agent.example.com/%63allback' }, 'invalid_request'],
  'another host': [{ redirect_uri: 'https://evil.example/callback' }, 'invalid_request'],
  'a host below it': [{ redirect_uri: 'https://x.agent.example.com/callback' }, 'invalid_request'],
  'a host that begins so': [
    { redirect_uri: 'https://agent.example.com.evil.example/callback' },
    'invalid_request',
  ],
  'a host as the user': [
    { redirect_uri: 'https://agent.example.com@evil.example/callback' },
    'invalid_request',
  ],
  'a backslash': [{ redirect_uri: 'https://agent.example.com\\@evil.example/callback' }, 'invalid_request'],
  'a host in capitals': [{ redirect_uri: 'https://AGENT.example.com/callback' }, 'invalid_request'],
  'another port': [{ redirect_uri: 'https://agent.example.com:8443/callback' }, 'invalid_request'],
  'the port of the scheme': [{ redirect_uri: 'https://agent.example.com:443/callback' }, 'invalid_request'],
  'plain HTTP': [{ redirect_uri: 'http://agent.example.com/callback' }, 'invalid_request'],
  'a script': [{ redirect_uri: 'javascript:alert(1)' }, 'invalid_request'],
  'data as a redirect': [{ redirect_uri: 'data:text/html,x' }, 'invalid_request'],
  'a scheme of a program': [{ redirect_uri: 'agent://callback' }, 'invalid_request'],
  'a redirect that is no URL': [{ redirect_uri: '/callback' }, 'invalid_request'],
  'another loopback name': [loopback('http://localhost:49152/callback'), 'invalid_request'],
  'another path on the loopback': [loopback('http://127.0.0.1:49152/other'), 'invalid_request'],
  'a loopback address of TLS': [loopback('https://127.0.0.1:49152/callback'), 'invalid_request'],
  'a host that begins as the loopback': [
    loopback('http://127.0.0.1.evil.example/callback'),
    'invalid_request',
  ],
  'the loopback as a user': [loopback('http://127.0.0.1:49152@evil.example/callback'), 'invalid_request'],
  'another spelling of the loopback': [loopback('http://127.1:49152/callback'), 'invalid_request'],
  'an address of the network': [loopback('http://10.0.0.1:49152/callback'), 'invalid_request'],
  'no challenge': [{ code_challenge: undefined }, 'invalid_request'],
  'a short challenge': [{ code_challenge: 'x'.repeat(42) }, 'invalid_request'],
  'a long challenge': [{ code_challenge: 'x'.repeat(44) }, 'invalid_request'],
  'a challenge with padding': [{ code_challenge: `${'x'.repeat(42)}=` }, 'invalid_request'],
  'a plain challenge': [{ code_challenge_method: 'plain' }, 'invalid_request'],
  'no method of the challenge': [{ code_challenge_method: undefined }, 'invalid_request'],
  'no resource': [{ resource: undefined }, 'invalid_target'],
  'the gateway as the resource': [{ resource: BASE }, 'invalid_target'],
  'the API as the resource': [{ resource: `${BASE}/api/v1/projects` }, 'invalid_target'],
  'the resource of another server': [{ resource: 'https://evil.example/mcp' }, 'invalid_target'],
  'a resource that begins so': [{ resource: `${BASE}/mcp-evil` }, 'invalid_target'],
  'a resource below it': [{ resource: `${BASE}/mcp/` }, 'invalid_target'],
  'a resource with a fragment': [{ resource: `${BASE}/mcp#x` }, 'invalid_target'],
  'a resource with another parameter': [{ resource: `${BASE}/mcp?x=1` }, 'invalid_target'],
  'a resource of no project': [{ resource: `${BASE}/mcp?project_id=1` }, 'invalid_target'],
  'scopes of other services': [{ scope: 'openid admin:write' }, 'invalid_scope'],
};

describe('a wrong request is refused, and leads nowhere', () => {
  let right: Parameters;
  let onLoopback: string;
  beforeAll(async () => {
    const { body } = await register(gateway.url, { redirect_uris: [CALLBACK] });
    right = requestFor(BASE, body.client_id, newPkce());
    onLoopback = (await register(gateway.url, { redirect_uris: [LOOPBACK] })).body.client_id;
  });

  test('the right one is not', async () => {
    expect((await authorize(gateway.url, right)).status).toBe(302);
    expect((await consent(owner, right)).status).toBe(201);
    expect(Object.keys(WRONG_REQUESTS).length).toBeGreaterThanOrEqual(60);
  });

  // By the link that a browser opens, and as a person's browser that changed the consent page would send it.
  test.each(Object.entries(WRONG_REQUESTS))('with %s', async (_, [change, error]) => {
    const before = (await grants()).length;
    const wrong = { ...right, ...change };
    if (change.client_id === 'loopback') wrong.client_id = onLoopback;
    const led = await authorize(gateway.url, wrong);
    expect([led.status, led.body.error, led.headers.get('location')]).toEqual([400, error, null]);
    expect(led.body.error_description).toMatch(/\S/);
    const agreed = await consent(owner, wrong);
    expect([agreed.status, agreed.body.error]).toEqual([400, error]);
    expect((await grants()).length).toBe(before);
  });

  test.each(['client_id', 'redirect_uri', 'code_challenge', 'resource', 'state'])(
    'with %s twice',
    async (name) => {
      const query = new URLSearchParams(right as Record<string, string>);
      query.append(name, 'https://evil.example');
      const led = await authorize(gateway.url, query.toString());
      expect([led.status, led.body.error]).toEqual([400, 'invalid_request']);
    },
  );

  test('nobody consents without a session of a person', async () => {
    const { body: key } = await owner.post<{ key: string }>('/api/v1/api-keys', {
      name: 'CI',
      role: 'owner',
      scopes: ['read', 'write'],
      expires_in_days: 1,
    });
    const { tokens } = await signedIn();
    const preAuth = {
      user: { issuer: BASE, gid: 'g', email: 'e' },
      step: 'verify' as const,
      first_factor: 'password' as const,
      sealed: null,
      version: 0,
      jti: crypto.randomUUID(),
    };
    const life = { issuedAt: new Date(), expiresAt: new Date(Date.now() + 60_000) };
    const half = await signOwnToken(OWN, 'pre_auth', preAuth, life);
    for (const [bearer, status] of [
      [null, 401],
      [key.key, 403],
      [tokens.access_token, 401],
      [half, 401],
    ] as const)
      expect((await consent(new Api(gateway.url, bearer), right)).status).toBe(status);
  });

  test('nobody gives more than they have', async () => {
    const operator = await person('agent-giver', 'operator');
    const elsewhere = await person('agent-far', 'owner', 'elsewhere');
    const { id: foreign } = await elsewhere.project('Far');
    for (const [by, more, status] of [
      [operator, { role: 'admin' }, 403],
      [operator, { role: 'owner' }, 403],
      [operator, { permissions: ['data.full'] }, 403],
      [operator, { project_id: project }, 404],
      [owner, { project_id: foreign }, 404],
      [owner, { project_id: crypto.randomUUID() }, 404],
      [owner, { branch_pattern: '*-*' }, 422],
      [owner, { scopes: [] }, 422],
    ] as const)
      expect((await consent(by, right, more as object)).status, JSON.stringify(more)).toBe(status);
    const reading = { ...right, scope: 'branchgate:read' };
    expect((await consent(owner, reading)).status).toBe(422);
    expect((await consent(owner, reading, { scopes: ['read'] })).status).toBe(201);
    expect((await consent(owner, right, { permissions: ['data.full'] })).status).toBe(201);
  });
});

describe('a wrong token request is refused', () => {
  const changes = (verifier: string): Record<string, readonly [Parameters, string]> => ({
    'the verifier of another client': [{ code_verifier: newPkce().verifier }, 'invalid_grant'],
    'another client': [{ client_id: crypto.randomUUID() }, 'invalid_grant'],
    'another redirect': [{ redirect_uri: LOOPBACK }, 'invalid_grant'],
    'another resource': [{ resource: 'https://evil.example/mcp' }, 'invalid_grant'],
    'another project': [{ resource: `${BASE}/mcp?project_id=${crypto.randomUUID()}` }, 'invalid_grant'],
    'the challenge as the verifier': [{ code_verifier: verifier }, 'invalid_grant'],
  });
  const names = Object.keys(changes(''));

  test.each(names)('with %s, and its code is void', async (name) => {
    const { form, grantId, pkce } = await signInClient(gateway.url, BASE, owner);
    const [change, error] = changes(pkce.challenge)[name] ?? [{}, ''];
    const { status, body } = await token({ ...form, ...change });
    expect([status, body.error]).toEqual([400, error]);
    expect((await token(form)).body.error).toBe('invalid_grant');
    expect(await revocations(grantId)).toMatchObject([
      { actorType: null, metadata: { reason: 'code_misused' } },
    ]);
  });

  test.each<[string, Parameters, string]>([
    ['no client', { client_id: undefined }, 'invalid_request'],
    ['no grant type', { grant_type: undefined }, 'invalid_request'],
    ['no code', { code: undefined }, 'invalid_request'],
    ['no redirect', { redirect_uri: undefined }, 'invalid_request'],
    ['no verifier', { code_verifier: undefined }, 'invalid_request'],
    ['a short verifier', { code_verifier: 'x'.repeat(42) }, 'invalid_request'],
    ['an unknown code', { code: 'x'.repeat(43) }, 'invalid_grant'],
    ['a password', { grant_type: 'password' }, 'unsupported_grant_type'],
    ['credentials of a client', { grant_type: 'client_credentials' }, 'unsupported_grant_type'],
    ['no refresh token', { grant_type: 'refresh_token' }, 'invalid_request'],
  ])('with %s, and its code stays', async (_, change, error) => {
    const { form } = await signInClient(gateway.url, BASE, owner);
    const { status, body } = await token({ ...form, ...change });
    expect([status, body.error]).toEqual([400, error]);
    expect((await token(form)).status).toBe(200);
  });

  test('with a parameter twice', async () => {
    const { form } = await signInClient(gateway.url, BASE, owner);
    const twice = new URLSearchParams(form);
    twice.append('client_id', form.client_id);
    expect((await token(twice.toString())).body.error).toBe('invalid_request');
  });

  test('with a code that was exchanged, which ends what it gave', async () => {
    const { form, grantId, tokens, client_id } = await signedIn();
    expect((await token(form)).body.error).toBe('invalid_grant');
    expect(await revocations(grantId)).toMatchObject([{ metadata: { reason: 'code_reused' } }]);
    expect((await token(refreshForm(client_id, tokens.refresh_token))).body.error).toBe('invalid_grant');
  });

  test('with a code of which ten arrive at the same time, save for one at most', async () => {
    const { form } = await signInClient(gateway.url, BASE, owner);
    const all = await Promise.all(Array.from({ length: 10 }, () => token(form)));
    expect(all.filter(({ status }) => status === 200).length).toBeLessThanOrEqual(1);
    for (const { status, body } of all) if (status !== 200) expect(body.error).toBe('invalid_grant');
  });

  test('with a code that is older than a minute', async () => {
    const { form, grantId } = await signInClient(gateway.url, BASE, owner);
    await gateway.db
      .update(oauthGrants)
      .set({ codeExpiresAt: new Date(Date.now() - 1) })
      .where(eq(oauthGrants.id, grantId));
    expect((await token(form)).body.error).toBe('invalid_grant');
  });
});

describe('a refresh token', () => {
  test('is valid once, and its second use ends the sign-in', async () => {
    const { client_id, tokens, grantId } = await signedIn();
    const next = await tokensOf(gateway.url, refreshForm(client_id, tokens.refresh_token));
    expect((await callMcp(gateway.url, next.access_token)).status).toBe(200);
    expect((await token(refreshForm(client_id, tokens.refresh_token))).body.error).toBe('invalid_grant');
    expect((await token(refreshForm(client_id, next.refresh_token))).body.error).toBe('invalid_grant');
    expect(await revocations(grantId)).toMatchObject([{ metadata: { reason: 'refresh_token_reused' } }]);
  });

  test('lives until 30 days after the consent, however often it is renewed', async () => {
    const { client_id, tokens } = await signedIn();
    const end = Number(decodeJwt(tokens.refresh_token).exp) * 1000;
    expect(Math.abs(end - Date.now() - 30 * DAY_MS)).toBeLessThan(60_000);
    const next = await tokensOf(gateway.url, refreshForm(client_id, tokens.refresh_token));
    expect(Number(decodeJwt(next.refresh_token).exp) * 1000).toBe(end);
    const { exp = 0, iat = 0 } = decodeJwt(next.access_token);
    expect(exp - iat).toBe(900);
  });

  test('gives less on request, and never more', async () => {
    const { client_id, tokens } = await signedIn(owner, { scopes: ['read'], branch_pattern: null });
    const form = refreshForm(client_id, tokens.refresh_token);
    expect((await token({ ...form, scope: 'branchgate:write' })).body.error).toBe('invalid_scope');
    expect((await token({ ...form, resource: 'https://evil.example/mcp' })).body.error).toBe(
      'invalid_target',
    );
    const all = await token({ ...form, scope: 'branchgate:read branchgate:write' });
    expect(all.body.scope).toBe('branchgate:read');
    const made = await callTool(gateway.url, all.body.access_token ?? '', 'create_branch', {
      name: 'agent-2',
      project_id: project,
    });
    expect(made).toMatchObject({ isError: true, text: expect.stringContaining('FORBIDDEN') });
    const wide = await signedIn(owner, { branch_pattern: null });
    const narrowed = await token({
      ...refreshForm(wide.client_id, wide.tokens.refresh_token),
      scope: 'branchgate:read',
    });
    expect(narrowed.body.scope).toBe('branchgate:read');
    expect(
      await callTool(gateway.url, narrowed.body.access_token ?? '', 'create_branch', {
        name: 'agent-2',
        project_id: project,
      }),
    ).toMatchObject({ isError: true, text: expect.stringContaining('FORBIDDEN') });
  });

  test('of another client, another kind or another key is refused', async () => {
    const one = await signedIn();
    const other = await signedIn();
    const claims = decodeJwt(one.tokens.refresh_token);
    const forged = new SignJWT(claims).setProtectedHeader({ alg: 'HS256', kid: '1' });
    for (const [client_id, refresh_token] of [
      [other.client_id, one.tokens.refresh_token],
      [one.client_id, one.tokens.access_token],
      [one.client_id, new UnsecuredJWT(claims).encode()],
      [one.client_id, await forged.sign(new Uint8Array(32).fill(7))],
      [one.client_id, `${one.tokens.refresh_token}x`],
      [one.client_id, one.form.code],
    ] as const)
      expect((await token(refreshForm(client_id, refresh_token))).body.error).toBe('invalid_grant');
    expect((await token(refreshForm(one.client_id, one.tokens.refresh_token))).status).toBe(200);
  });

  /** What happens to the person, after which the client is refused. */
  const ENDS: Record<string, (account: Awaited<ReturnType<typeof newAccount>>) => Promise<unknown>> = {
    'signs out': ({ api }) => api.post('/api/v1/auth/logout', {}),
    'ends the session elsewhere': ({ api, sid }) => api.delete(`/api/v1/auth/sessions/${sid}`),
    'signs out everywhere': ({ api }) => api.delete('/api/v1/auth/sessions'),
    'is removed': ({ userId }) => owner.delete(`/api/v1/members/${userId}`),
    'loses the membership': ({ userId }) =>
      gateway.db.delete(organizationMembers).where(eq(organizationMembers.userId, userId)),
    'has moved to another tenant': ({ userId }) =>
      gateway.db.update(users).set({ tenantId: 'elsewhere' }).where(eq(users.id, userId)),
    'has not used the console for too long': ({ sid }) =>
      gateway.db
        .update(sessions)
        .set({ expiresAt: new Date(Date.now() - 1) })
        .where(eq(sessions.id, sid)),
  };

  // Each waits until the record is read again.
  test.concurrent.each(Object.entries(ENDS))(
    'is refused when the person %s, and so is the access token',
    async (_, end) => {
      const account = await newAccount('operator');
      const { client_id, tokens, grantId } = await signedIn(account.api);
      const machine = { type: 'grant' as const, id: grantId };
      const present = async () => {
        // Without what an isolate has cached.
        const record = await machineRecord(gateway.database, machine, new Date(Date.now() + 2 * CACHED_MS));
        return record?.expiresAt && record.expiresAt.getTime() > Date.now() ? record : null;
      };
      expect(await present()).not.toBeNull();
      await end(account);
      expect((await token(refreshForm(client_id, tokens.refresh_token))).body.error).toBe('invalid_grant');
      await eventually(async () => expect(await present()).toBeNull());
    },
  );

  test('is refused once the company requires its provider, as the next consent is', async () => {
    const domain = `${crypto.randomUUID()}.example`;
    const account = await newAccount('owner', domain, domain);
    const { client_id, tokens, request } = await signedIn(account.api);
    const next = await tokensOf(gateway.url, refreshForm(client_id, tokens.refresh_token));
    const id = crypto.randomUUID();
    const now = new Date();
    const times = { createdAt: now, updatedAt: now };
    await gateway.db.insert(identityProviders).values({
      id,
      tenantId: domain,
      kind: 'oidc',
      name: 'Company',
      issuer: `https://${domain}`,
      clientId: 'c',
      keyId: '1',
      sealedSecret: 's',
      defaultRole: 'viewer',
      roles: [],
      ...times,
    });
    const verified = { verification: 'v', verifiedAt: now, createdAt: now };
    await gateway.db
      .insert(providerDomains)
      .values({ providerId: id, domain, tenantId: domain, ...verified });
    await gateway.db.insert(signInPolicies).values({ tenantId: domain, ssoRequired: true, updatedAt: now });
    expect((await token(refreshForm(client_id, next.refresh_token))).body.error).toBe('invalid_grant');
    const again = await consent(account.api, request);
    expect([again.status, again.body.error]).toEqual([403, 'SSO_REQUIRED']);
  });

  test('keeps the session of its person, as a renewal does', async () => {
    const account = await newAccount('operator');
    const { client_id, tokens } = await signedIn(account.api);
    const endOf = async () => {
      const [row] = await gateway.db.select().from(sessions).where(eq(sessions.id, account.sid));
      return row?.expiresAt.getTime() ?? 0;
    };
    const before = await endOf();
    expect((await token(refreshForm(client_id, tokens.refresh_token))).status).toBe(200);
    expect(await endOf()).toBeGreaterThan(before);
  });

  test('follows the role of its person', async () => {
    const account = await newAccount('operator');
    const { grantId } = await signedIn(account.api);
    await gateway.db
      .update(organizationMembers)
      .set({ role: 'viewer' })
      .where(eq(organizationMembers.userId, account.userId));
    const later = new Date(Date.now() + 2 * CACHED_MS);
    expect(await machineRecord(gateway.database, { type: 'grant', id: grantId }, later)).toMatchObject({
      creator: { role: 'viewer' },
    });
  });
});

test('a token of a client is valid at /mcp only, and /mcp hands no token on', async () => {
  const { tokens } = await signedIn(owner, { branch_pattern: null, project_id: project });
  const { access_token, refresh_token } = tokens;
  expect((await callMcp(gateway.url, access_token)).status).toBe(200);
  expect((await callMcp(gateway.url, refresh_token)).status).toBe(401);
  const bearer = new Api(gateway.url, access_token);
  for (const path of ['/api/v1/me', '/api/v1/projects', `/v1/projects/${project}`, '/api/v1/oauth-grants'])
    expect((await bearer.get(path)).status, path).toBe(401);
  const statement = JSON.stringify({ query: 'select 1', params: [] });
  const sql = await fetch(`${gateway.url}/sql`, {
    method: 'POST',
    headers: {
      'Neon-Connection-String': `postgresql://${loginName(ids.branch_id ?? '', 'read_write')}@db.example.com/db`,
      authorization: `Bearer ${access_token}`,
    },
    body: statement,
  });
  expect(sql.status).toBe(401);
  // Other bearers are handed on too, with what they may do.
  for (const other of [gateway.token, access_token]) {
    const { structuredContent, text } = await callTool(gateway.url, other, 'list_branches', {
      project_id: project,
    });
    expect(structuredContent, text).toBeDefined();
  }
});

test('a client signs itself out, by either of its tokens and no other client', async () => {
  for (const kind of ['access_token', 'refresh_token'] as const) {
    const { client_id, tokens, grantId } = await signedIn();
    const revoke = (form: Parameters) => sendForm(gateway.url, 'revoke', form);
    expect((await revoke({ token: tokens[kind], client_id: crypto.randomUUID() })).body.error).toBe(
      'invalid_grant',
    );
    expect((await revoke({ token: 'nothing', client_id })).status).toBe(200);
    expect((await revoke({ token: tokens[kind] })).body.error).toBe('invalid_request');
    expect((await revoke({ token: tokens[kind], client_id })).status).toBe(200);
    expect((await revoke({ token: tokens[kind], client_id })).status).toBe(200);
    expect(await revocations(grantId)).toMatchObject([
      { actorType: 'grant', actorId: grantId, metadata: { reason: 'client_signed_out' } },
    ]);
    expect((await token(refreshForm(client_id, tokens.refresh_token))).body.error).toBe('invalid_grant');
  }
});

test('a person has 50 clients at most, and those that never came for their code are not among them', async () => {
  const account = await newAccount('viewer');
  const { grantId: sample } = await signInClient(gateway.url, BASE, account.api, { role: 'viewer' });
  const [row] = await gateway.db.select().from(oauthGrants).where(eq(oauthGrants.id, sample));
  if (!row) throw new Error('no grant');
  const copy = (n: number) => ({ ...row, id: crypto.randomUUID(), codeHash: `${sample}-${n}` });
  for (let n = 0; n < 49; n += 1)
    await gateway.db.insert(oauthGrants).values({ ...copy(n), refreshId: crypto.randomUUID() });
  const { body } = await register(gateway.url, { redirect_uris: [CALLBACK] });
  const request = requestFor(BASE, body.client_id, newPkce());
  const refused = await consent(account.api, request, { role: 'viewer' });
  expect([refused.status, refused.body]).toMatchObject([
    429,
    { error: 'OAUTH_GRANT_LIMIT_REACHED', limit: 50 },
  ]);
  await gateway.db
    .update(oauthGrants)
    .set({ codeExpiresAt: new Date(0) })
    .where(eq(oauthGrants.id, sample));
  expect((await consent(account.api, request, { role: 'viewer' })).status).toBe(201);
});

describe('a registration', () => {
  const metadata = { client_name: 'Agent', redirect_uris: [CALLBACK] };

  test('has no secret, whatever the client asks for', async () => {
    const { status, body } = await register(gateway.url, {
      ...metadata,
      token_endpoint_auth_method: 'client_secret_basic',
      client_secret: 'mine',
      logo_uri: 'https://evil.example/logo.png',
    });
    expect([status, body]).toEqual([
      201,
      {
        client_id: expect.any(String),
        client_id_issued_at: expect.any(Number),
        client_name: 'Agent',
        redirect_uris: [CALLBACK],
        token_endpoint_auth_method: 'none',
        grant_types: ['authorization_code', 'refresh_token'],
        response_types: ['code'],
      },
    ]);
  });

  test.each<[string, unknown, string]>([
    ['no redirect', {}, 'invalid_redirect_uri'],
    ['an empty list', { redirect_uris: [] }, 'invalid_redirect_uri'],
    [
      'too many',
      { redirect_uris: Array.from({ length: 11 }, (_, n) => `${CALLBACK}${n}`) },
      'invalid_redirect_uri',
    ],
    ['a script', { redirect_uris: ['javascript:alert(1)'] }, 'invalid_redirect_uri'],
    ['a scheme of a program', { redirect_uris: ['agent://callback'] }, 'invalid_redirect_uri'],
    ['plain HTTP', { redirect_uris: ['http://agent.example.com/callback'] }, 'invalid_redirect_uri'],
    ['one wrong of two', { redirect_uris: [CALLBACK, 'http://10.0.0.1/'] }, 'invalid_redirect_uri'],
    ['a fragment', { redirect_uris: [`${CALLBACK}#x`] }, 'invalid_redirect_uri'],
    ['a name that is no text', { ...metadata, client_name: 7 }, 'invalid_client_metadata'],
    ['an empty name', { ...metadata, client_name: ' ' }, 'invalid_client_metadata'],
    ['no object', [], 'invalid_client_metadata'],
  ])('is refused with %s', async (_, wrong, error) => {
    const { status, body } = await register(gateway.url, wrong);
    expect([status, body.error]).toEqual([400, error]);
  });

  test('is counted by address', async () => {
    const from = { 'CF-Connecting-IP': '198.19.0.1' };
    for (let n = 0; n < 20; n += 1) expect((await register(gateway.url, metadata, from)).status).toBe(201);
    expect((await register(gateway.url, metadata, from)).status).toBe(429);
    expect((await register(gateway.url, metadata)).status).toBe(201);
  });

  test('is gone after a day without a grant, and one of 10,000 at most', async () => {
    const { client_id, tokens } = await signedIn();
    const { body: unused } = await register(gateway.url, metadata);
    await gateway.db.update(oauthClients).set({ lastUsedAt: new Date(Date.now() - DAY_MS) });
    const lead = (id: string) => authorize(gateway.url, requestFor(BASE, id, newPkce()));
    expect((await lead(client_id)).status).toBe(302);
    expect((await lead(unused.client_id)).body.error).toBe('invalid_client');
    await deleteUnusedClients(gateway.db, new Date());
    const left = await gateway.db.select({ id: oauthClients.id }).from(oauthClients);
    expect(left.map(({ id }) => id)).toContain(client_id);
    expect(left.map(({ id }) => id)).not.toContain(unused.client_id);
    expect((await token(refreshForm(client_id, tokens.refresh_token))).status).toBe(200);
    await gateway.inD1(`insert into oauth_clients (id, name, redirect_uris, last_used_at, created_at)
      with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < 10000)
      select 'many-' || n, 'Many', '[]', ${Date.now()}, 0 from numbers`);
    expect((await register(gateway.url, metadata)).body.error).toBe('OAUTH_CLIENT_LIMIT_REACHED');
    await gateway.db.delete(oauthClients).where(sql`id like 'many-%'`);
  });
});

describe('a metadata document', () => {
  test('is read when a person has signed in, once an hour, and has to be of its address', async () => {
    const documents = await startDocuments();
    const reader = await person(`agent-reader-${crypto.randomUUID()}`, 'operator');
    const of = (path: string) => requestFor(BASE, documents.url + path, newPkce(), LOOPBACK);
    const preview = (path: string) =>
      reader.post<Record<string, string>>('/api/v1/oauth-grants/preview', { request: of(path) });
    try {
      const document = {
        client_id: `${documents.url}/client.json`,
        client_name: 'Documented',
        redirect_uris: [LOOPBACK, 'agent://callback'],
        logo_uri: `${documents.url}/logo.png`,
      };
      documents.at.set('/client.json', document);
      expect((await authorize(gateway.url, of('/client.json'))).status).toBe(302);
      expect(documents.requests).toBe(0);
      for (let n = 0; n < 3; n += 1)
        expect((await preview('/client.json')).body).toMatchObject({ client_name: 'Documented' });
      expect(documents.requests).toBe(1);
      expect((await consent(reader, of('/client.json'))).status).toBe(201);

      const faults: Record<string, unknown> = {
        '/other': { ...document, client_id: `${documents.url}/client.json` },
        '/secret': {
          ...document,
          client_id: `${documents.url}/secret`,
          token_endpoint_auth_method: 'client_secret_post',
        },
        '/schemes': {
          ...document,
          client_id: `${documents.url}/schemes`,
          redirect_uris: ['agent://callback'],
        },
        '/no-redirects': { client_id: `${documents.url}/no-redirects` },
        '/html': (response: ServerResponse) => response.end('<html></html>'),
        '/large': (response: ServerResponse) =>
          response.end(JSON.stringify({ ...document, x: 'x'.repeat(65 * 1024) })),
        '/moved': (response: ServerResponse) =>
          response.writeHead(302, { location: `${documents.url}/client.json` }).end(),
        '/missing': (response: ServerResponse) => response.writeHead(404).end('{}'),
        '/proto': (response: ServerResponse) =>
          response.end(
            `{"client_id":"${documents.url}/proto","redirect_uris":["${LOOPBACK}"],"__proto__":{}}`,
          ),
      };
      for (const [path, fault] of Object.entries(faults)) {
        documents.at.set(path, fault);
        const { status, body } = await preview(path);
        expect([path, status, body.error]).toEqual([path, 400, 'invalid_client']);
      }
      // The redirect was not followed.
      expect(documents.requests).toBe(1 + Object.keys(faults).length);
      const redirected = { ...of('/client.json'), redirect_uri: CALLBACK };
      expect((await reader.post('/api/v1/oauth-grants/preview', { request: redirected })).body).toMatchObject(
        {
          error: 'invalid_request',
        },
      );

      // Each person can have 20 read an hour; what is known costs nothing.
      const left = 20 - documents.requests;
      for (let n = 0; n < left; n += 1) expect((await preview(`/${n}`)).body.error).toBe('invalid_client');
      expect((await preview('/more')).status).toBe(429);
      expect(documents.requests).toBe(20);
      expect((await preview('/client.json')).status).toBe(200);
    } finally {
      await documents.stop();
    }
  });
});
