import { createHmac } from 'node:crypto';
import { eq } from 'drizzle-orm';
import { UnsecuredJWT } from 'jose';
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { trusts } from '../../../edge/database/people-schema.ts';
import { auditEvents, projects } from '../../../edge/database/schema.ts';
import { CACHED_MS, machineRecord } from '../../../edge/machines/authenticate-machine.ts';
import { Api } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import { type Ids, PLATFORM_OPERATIONS } from '../../support/operations.ts';
import { type Algorithm, type OidcIssuer, startOidcIssuer } from '../../support/sign-in/oidc-issuer.ts';
import { sharedTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

const AUDIENCE = 'https://branchgate.example.com';
const CLAIMS = { repository: 'acme/shop', ref: 'refs/pull/*' };
const RIGHT = {
  aud: AUDIENCE,
  sub: 'repo:acme/shop:pull_request',
  repository: 'acme/shop',
  ref: 'refs/pull/7/merge',
};
const seconds = (offset: number) => Math.floor(Date.now() / 1000) + offset;

let gateway: TripsGateway;
let ids: Ids;
let issuer: OidcIssuer;

beforeAll(async () => {
  gateway = await sharedTripsGateway();
  ids = await gateway.makeThings();
});
// Each test has an issuer, and therefore a cache, of its own.
beforeEach(async () => {
  issuer = await startOidcIssuer();
});
afterEach(async () => {
  await issuer.stop();
  await gateway.db.delete(trusts);
});

const trustsPath = () => `/api/v1/projects/${ids.project_id}/trusts`;

async function trust(more: Record<string, unknown> = {}) {
  const wanted = {
    issuer: issuer.url,
    audience: AUDIENCE,
    claims: CLAIMS,
    role: 'operator',
    branch_pattern: 'pr-*',
  };
  const { status, body } = await gateway.api.post<{ id: string }>(trustsPath(), { ...wanted, ...more });
  expect(status, JSON.stringify(body)).toBe(201);
  return body;
}

/** Exchanges the token as an OAuth client does. */
function exchange(subject_token: string, more: Record<string, string> = {}) {
  const form = new URLSearchParams({
    grant_type: 'urn:ietf:params:oauth:grant-type:token-exchange',
    subject_token_type: 'urn:ietf:params:oauth:token-type:id_token',
    subject_token,
    resource: `${SETTINGS.BASE_URL}/api/v1/projects/${ids.project_id}`,
    ...more,
  });
  const headers = { 'Content-Type': 'application/x-www-form-urlencoded' };
  return new Api(gateway.url, null).call<Record<string, string>>('POST', '/api/v1/auth/token', {
    body: form.toString(),
    headers,
  });
}

/** Order of the group of P-256. */
const P256_ORDER = 0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551n;

/** The other valid ES256 signature of the same text, which anyone can compute: (r, n − s). */
function otherSignature(signature: string): string {
  const bytes = Buffer.from(signature, 'base64url');
  const s = BigInt(`0x${bytes.subarray(32).toString('hex')}`);
  const other = (P256_ORDER - s).toString(16).padStart(64, '0');
  return Buffer.concat([bytes.subarray(0, 32), Buffer.from(other, 'hex')]).toString('base64url');
}

/** The number of rows that were written so far. */
const written = async () => (await gateway.database.prepare('select total_changes()').raw())[0];

async function expectRefused(token: string, more?: Record<string, string>, error = 'invalid_request') {
  // What earlier requests have left to the background changes the records too.
  await eventually(async () => {
    const before = await written();
    const { status, body } = await exchange(token, more);
    expect([status, body.error]).toEqual([error === 'KEYS_UNAVAILABLE' ? 503 : 400, error]);
    expect(await written()).toEqual(before);
  });
}

describe('the right token', () => {
  test.each<Algorithm>(['RS256', 'ES256', 'EdDSA'])('of an issuer with %s is exchanged', async (alg) => {
    const other = await startOidcIssuer(alg);
    try {
      await trust({ issuer: other.url });
      const { status, body } = await exchange(await other.token(RIGHT));
      expect([status, body]).toEqual([
        200,
        {
          access_token: expect.any(String),
          issued_token_type: 'urn:ietf:params:oauth:token-type:access_token',
          token_type: 'Bearer',
          expires_in: 900,
          scope: 'branchgate:read branchgate:write',
        },
      ]);
    } finally {
      await other.stop();
    }
  });

  test('gives access to matching branches of the project only', async () => {
    const { id } = await trust();
    const { body } = await exchange(await issuer.token(RIGHT));
    const workload = new Api(gateway.url, body.access_token ?? '');
    const project = ids.project_id ?? '';
    const made = await workload.branch(project, `pr-${Date.now()}`);
    const branches = `/api/v1/projects/${project}/branches`;
    expect((await workload.get(`${branches}/${made.branch_name}/credentials`)).status).toBe(200);
    for (const other of ['main', 'made']) {
      expect((await workload.get(`${branches}/${other}/credentials`)).status, other).toBe(404);
    }
    expect((await workload.get(`/api/v1/projects/${project}`)).status).toBe(404);
    const elsewhere = await gateway.api.project('Elsewhere');
    expect((await workload.get(`/api/v1/projects/${elsewhere.id}/branches`)).status).toBe(404);
    expect(await workload.get('/api/v1/me')).toMatchObject({
      status: 200,
      body: { actor_type: 'workload', branch_pattern: 'pr-*', email: null, role: 'operator' },
    });
    const events = await gateway.db.select().from(auditEvents).where(eq(auditEvents.actorId, id));
    const names = events.map(({ name, actorType }) => [name, actorType]);
    expect(names).toEqual(
      expect.arrayContaining([
        ['trust.token_issued', 'workload'],
        ['branch.created', 'workload'],
        ['branch.credentials.viewed', 'workload'],
      ]),
    );
    const issued = events.find(({ name }) => name === 'trust.token_issued');
    expect(issued?.metadata).toEqual({ subject: RIGHT.sub });
  });

  test('is verified with keys that are fetched once', async () => {
    await trust();
    for (let n = 0; n < 3; n += 1) expect((await exchange(await issuer.token(RIGHT))).status).toBe(200);
    expect(issuer.requests).toBe(2);
  });

  test.each([{ jti: 'an-id' }, { jti: undefined }])('is exchanged once, also in parallel: %j', async (id) => {
    await trust();
    const token = await issuer.token({ ...RIGHT, ...id });
    const all = await Promise.all(Array.from({ length: 10 }, () => exchange(token)));
    expect(all.filter(({ status }) => status === 200)).toHaveLength(1);
    await expectRefused(token);
    const [header, payload, signature = ''] = token.split('.');
    // The same token with another valid signature is no other token.
    await expectRefused(`${header}.${payload}.${otherSignature(signature)}`);
    // Another token of the same run is exchanged.
    const next = { ...RIGHT, ...(id.jti ? { jti: 'another' } : { jti: undefined, run: 2 }) };
    expect((await exchange(await issuer.token(next))).status).toBe(200);
  });

  test('is not used up by a forged one with its jti', async () => {
    await trust();
    const other = await startOidcIssuer();
    try {
      const claims = { ...RIGHT, jti: 'an-id' };
      await expectRefused(await other.token({ ...claims, iss: issuer.url }, { kid: issuer.kid }));
      await expectRefused(await issuer.token({ ...claims, exp: seconds(-1) }));
      const before = await written();
      expect((await exchange(await issuer.token(claims))).status).toBe(200);
      expect(await written()).not.toEqual(before);
    } finally {
      await other.stop();
    }
  });

  test('is refused once its trust is deleted, and so are its access tokens', async () => {
    const { id } = await trust();
    const now = Date.now();
    const read = (afterMs: number) =>
      machineRecord(gateway.database, { type: 'workload', id }, new Date(now + afterMs));
    expect(await read(0)).toMatchObject({ id });
    expect((await gateway.api.delete(`${trustsPath()}/${id}`)).status).toBe(204);
    expect(await read(CACHED_MS)).toBeNull();
    await expectRefused(await issuer.token(RIGHT));
  });

  test('is refused while the project moves to another tenant, although its trust is cached', async () => {
    await trust();
    expect((await exchange(await issuer.token(RIGHT))).status).toBe(200);
    const setTenant = (tenantId: string) =>
      gateway.db
        .update(projects)
        .set({ tenantId })
        .where(eq(projects.id, ids.project_id ?? ''));
    await setTenant('elsewhere');
    await expectRefused(await issuer.token(RIGHT));
    await setTenant('acme');
  });

  test('is not accepted as a bearer itself, nor an access token as a subject', async () => {
    await trust();
    const token = await issuer.token(RIGHT);
    expect((await new Api(gateway.url, token).get('/api/v1/me')).status).toBe(401);
    const { body } = await exchange(token);
    await expectRefused(body.access_token ?? '');
    for (const { path } of PLATFORM_OPERATIONS.slice(0, 1)) {
      expect((await new Api(gateway.url, body.access_token ?? '').get(path)).status).toBe(401);
    }
  });
});

test.each([
  ['https://token.actions.githubusercontent.com', 'repository', 'nope'],
  ['https://token.actions.githubusercontent.com', 'repository', 'a/b/c'],
  ['https://gitlab.com', 'project_path', 'nope'],
])('a trust of %s with the %s %s, which no token has, is refused', async (address, claim, value) => {
  const ask = (repository: string) =>
    gateway.api.post(trustsPath(), {
      issuer: address,
      audience: AUDIENCE,
      claims: { [claim]: repository },
      role: 'operator',
    });
  expect(await ask(value)).toMatchObject({
    status: 422,
    body: { error: 'VALIDATION_FAILED', details: [{ path: `claims.${claim}` }] },
  });
  for (const possible of ['acme/shop', 'acme/*']) expect((await ask(possible)).status).toBe(201);
});

describe('a token is refused, and nothing is written', () => {
  /** Made when they are used, because times pass meanwhile. */
  const wrong: Record<string, () => Record<string, unknown>> = {
    'another repository': () => ({ repository: 'acme/blog' }),
    'a repository that begins as the right one': () => ({ repository: 'acme/shop2' }),
    'the right repository with another case': () => ({ repository: 'Acme/shop' }),
    'no repository': () => ({ repository: undefined }),
    'a repository that is no text': () => ({ repository: ['acme/shop'] }),
    'another ref': () => ({ ref: 'refs/heads/main' }),
    'a ref that contains the right one': () => ({ ref: 'x/refs/pull/7' }),
    'another audience': () => ({ aud: 'https://other.example.com' }),
    'no audience': () => ({ aud: undefined }),
    'another issuer': () => ({ iss: 'https://token.actions.githubusercontent.com' }),
    'an expiry in the past': () => ({ exp: seconds(-1) }),
    'no expiry': () => ({ exp: undefined }),
    'no time of issue': () => ({ iat: undefined }),
    'a time of issue in the future': () => ({ iat: seconds(120) }),
    'a start in the future': () => ({ nbf: seconds(120) }),
    'a life of more than an hour': () => ({ iat: seconds(0), exp: seconds(3601) }),
    'an issue a year ago, valid for ten years': () => ({
      iat: seconds(-365 * 86_400),
      nbf: seconds(-365 * 86_400),
      exp: seconds(9 * 365 * 86_400),
    }),
    'a claim constructor': () => ({ constructor: { name: 'x' } }),
    'a claim prototype': () => ({ prototype: { name: 'x' } }),
    'a claim with __proto__': () => ({ more: JSON.parse('{"__proto__":{"name":"x"}}') }),
    'an issue more than an hour ago': () => ({ iat: seconds(-3601), exp: seconds(30) }),
  };

  test.each(Object.entries(wrong))('%s', async (_, claimsOf) => {
    await trust();
    await expectRefused(await issuer.token({ ...RIGHT, ...claimsOf() }));
  });

  test('alg: none', async () => {
    await trust();
    const { kid, url: iss } = issuer;
    const claims = { ...RIGHT, iss, iat: seconds(0), exp: seconds(300) };
    await expectRefused(new UnsecuredJWT(claims).encode());
    const part = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url');
    for (const alg of ['none', 'None', 'HS256']) {
      const text = `${part({ alg, kid })}.${part(claims)}`;
      const publicKey = JSON.stringify(issuer.keys.keys[0]);
      const mac = createHmac('sha256', publicKey).update(text).digest('base64url');
      for (const signature of ['', mac]) await expectRefused(`${text}.${signature}`);
    }
  });

  test('the algorithm of another kind of key', async () => {
    await trust();
    const [, payload = '', signature = ''] = (await issuer.token(RIGHT)).split('.');
    for (const alg of ['RS256', 'EdDSA', 'ES384', 'PS256']) {
      const header = Buffer.from(JSON.stringify({ alg, kid: issuer.kid })).toString('base64url');
      await expectRefused(`${header}.${payload}.${signature}`);
    }
  });

  test('a changed signature or payload, and the key of another issuer', async () => {
    await trust();
    const [header, payload, signature = ''] = (await issuer.token(RIGHT)).split('.');
    await expectRefused(`${header}.${payload}.${signature.startsWith('A') ? 'B' : 'A'}${signature.slice(1)}`);
    const other = await startOidcIssuer();
    try {
      await expectRefused(await other.token({ ...RIGHT, iss: issuer.url }, { kid: issuer.kid }));
    } finally {
      await other.stop();
    }
  });

  test('an unknown kid, which causes at most one more fetch', async () => {
    await trust();
    expect((await exchange(await issuer.token(RIGHT))).status).toBe(200);
    for (const kid of ['other', 'another', '']) await expectRefused(await issuer.token(RIGHT, { kid }));
    expect(issuer.requests).toBe(4);
  });

  test('too long, or no token at all', async () => {
    await trust();
    await expectRefused(await issuer.token({ ...RIGHT, more: 'x'.repeat(8192) }));
    for (const text of ['x', '..', 'a.b.c', 'v4.public.AAAA']) await expectRefused(text);
    expect(issuer.requests).toBe(0);
  });

  test('of a project without this trust, or an unknown one: the same response', async () => {
    await trust();
    const token = await issuer.token(RIGHT);
    const base = `${SETTINGS.BASE_URL}/api/v1/projects`;
    const { id } = await gateway.api.project('Untrusting');
    const { body: one } = await exchange(token, { resource: `${base}/${id}` });
    const { body: other } = await exchange(token, { resource: `${base}/${crypto.randomUUID()}` });
    expect({ ...one, request_id: '' }).toEqual({ ...other, request_id: '' });
    for (const resource of ['', base, `${base}/x`, `https://other.example.com/api/v1/projects/${id}`]) {
      await expectRefused(token, { resource }, 'invalid_target');
    }
  });

  test('with another grant type, another token type, or a missing or repeated parameter', async () => {
    await trust();
    const token = await issuer.token(RIGHT);
    await expectRefused(token, { grant_type: 'client_credentials' }, 'unsupported_grant_type');
    await expectRefused(token, { subject_token_type: 'urn:ietf:params:oauth:token-type:jwt' });
    const call = (body: string) => new Api(gateway.url, null).call('POST', '/api/v1/auth/token', { body });
    for (const body of ['', '{}', 'grant_type=x', 'grant_type=x&grant_type=y&resource=z']) {
      expect(await call(body)).toMatchObject({ status: 400, body: { error: 'invalid_request' } });
    }
  });
});

describe("the issuer's documents are refused, and nothing is written", () => {
  const large = JSON.stringify({ keys: [], padding: 'x'.repeat(70_000) });

  test.each<[string, (response: import('node:http').ServerResponse) => void]>([
    ['too large', (response) => response.end(large)],
    ['too slow', () => {}],
    ['not JSON', (response) => response.end('<html>')],
    ['an error', (response) => response.writeHead(500).end()],
    ['a redirect', (response) => response.writeHead(302, { location: 'http://127.0.0.1:1/' }).end()],
  ])(
    '%s',
    async (_, fault) => {
      await trust();
      issuer.fault = fault;
      await expectRefused(await issuer.token(RIGHT), {}, 'KEYS_UNAVAILABLE');
    },
    20_000,
  );

  test.each<[string, (one: OidcIssuer) => void]>([
    [
      'the configuration of another issuer',
      (one) => Object.assign(one.configuration, { issuer: 'https://x.example' }),
    ],
    [
      'keys on a private address',
      (one) => Object.assign(one.configuration, { jwks_uri: 'https://10.0.0.1/keys' }),
    ],
    [
      'keys over plain HTTP elsewhere',
      (one) => Object.assign(one.configuration, { jwks_uri: 'http://example.com/k' }),
    ],
    [
      'only a symmetric key',
      (one) => Object.assign(one.keys, { keys: [{ kty: 'oct', kid: one.kid, k: 'AAAA' }] }),
    ],
  ])('%s', async (_, change) => {
    await trust();
    change(issuer);
    await expectRefused(await issuer.token(RIGHT), {}, 'KEYS_UNAVAILABLE');
  });
});

describe('a trust', () => {
  test.each([
    'https://10.0.0.1',
    'http://ci.example.com',
    'https://169.254.169.254',
    'https://db.internal',
    'x',
  ])('of the issuer %s is refused', async (address) => {
    const wanted = { issuer: address, audience: AUDIENCE, claims: CLAIMS, role: 'operator' };
    const before = await written();
    const { status, body } = await gateway.api.post(trustsPath(), wanted);
    expect([status, body.error]).toEqual([422, 'VALIDATION_FAILED']);
    expect(await written()).toEqual(before);
  });

  test.each([
    ['no claims', {}],
    ['a claim with any value', { repository: '*' }],
    ['a * that is not last', { repository: 'acme/*/shop' }],
    ['an empty claim', { repository: '' }],
  ])('with %s is refused', async (_, claims) => {
    const wanted = { issuer: issuer.url, audience: AUDIENCE, claims, role: 'operator' };
    expect((await gateway.api.post(trustsPath(), wanted)).status).toBe(422);
  });

  test('has a cap for each project', async () => {
    const { id } = await gateway.api.project('Trusting');
    const wanted = { issuer: issuer.url, audience: AUDIENCE, claims: CLAIMS, role: 'viewer' };
    const statuses = await Promise.all(
      Array.from({ length: 24 }, () => gateway.api.post(`/api/v1/projects/${id}/trusts`, wanted)),
    );
    expect(statuses.filter(({ status }) => status === 201)).toHaveLength(20);
    expect(statuses.filter(({ status }) => status === 429)).toHaveLength(4);
    const rows = await gateway.db.select().from(trusts).where(eq(trusts.projectId, id));
    expect(rows).toHaveLength(20);
  });
});
