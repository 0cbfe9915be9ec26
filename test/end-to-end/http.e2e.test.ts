import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, inject, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api } from '../support/api.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { callOperation, createResources, type Ids, OPERATIONS } from '../support/operations.ts';
import { type Send, type Sent, senderTo } from '../support/send.ts';
import { ownTokens } from '../support/sign-in/own-tokens.ts';
import { tenantNamed, tokenOf } from '../support/tenants.ts';

const BODY_LIMIT = 1024 * 1024;

const stack = inject('stack');
let send: Send;
let token: string;
let platformSecret: string;
let preAuthToken: string;
let ids: Ids;

beforeAll(async () => {
  token = await tokenOf({ tenant: 'http' });
  send = senderTo(stack.url, token);
  platformSecret = gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET;
  preAuthToken = await ownTokens(stack).preAuth();
  const api = new Api(stack.url, token);
  const platform = new Api(stack.url, platformSecret);
  const { body: listed } = await platform.get<{ hosts: { id: string }[] }>('/platform/v1/hosts');
  ids = { ...(await createResources(api)), host_id: listed.hosts[0]?.id ?? '' };
});

const errorOf = ({ status, text }: { status: number; text: string }) => [status, JSON.parse(text).error];
const post = (body: Sent['body'], more: Sent = {}) =>
  send('/api/v1/projects', { method: 'POST', ...(body !== undefined && { body }), ...more });

const TOKENS = {
  public: () => null,
  pre_auth: () => preAuthToken,
  signed_in: () => token,
  platform: () => platformSecret,
  user: () => token,
};
const apiFor = (access: keyof typeof TOKENS) => new Api(stack.url, TOKENS[access]());

describe('every response', () => {
  test.each([
    ['/healthz', 200],
    ['/docs', 200],
    ['/api/v1/openapi.json', 200],
    ['/api/v1/projects', 200],
    ['/api/v1/nowhere', 404],
    ['/platform/v1/hosts', 401],
    ['/api/v1/auth/oauth/authorize', 400],
    ['/api/v1/auth/login', 404],
    ['/', 200],
    ['/authorize', 200],
    ['/projects/nowhere/tables', 200],
    ['/icon.svg', 200],
    ['/assets/missing.js', 404],
  ])('of %s has the security headers', async (path, status) => {
    const { headers, ...response } = await send(path);
    expect(response.status).toBe(status);
    expect(headers.get('content-security-policy')).toMatch(/default-src 'none'.*frame-ancestors 'none'/);
    expect(headers.get('x-content-type-options')).toBe('nosniff');
    expect(headers.get('referrer-policy')).toBe('no-referrer');
    expect(headers.get('strict-transport-security')).toMatch(/^max-age=\d{8}/);
    expect(headers.get('x-powered-by')).toBeNull();
    // Nothing that a tenant has named becomes a script, a style, a frame, a base or a target of a form.
    expect(headers.get('content-security-policy')).not.toMatch(/unsafe-|\*|https?:(?!\/\/\S)/);
  });

  test.each(['abcdefgh', 'a.b-c_d.0', 'x'.repeat(128), crypto.randomUUID()])(
    'repeats the request ID of the client: %s',
    async (id) => {
      const response = await send('/api/v1/nowhere', { headers: { 'X-Request-Id': id } });
      expect(response.headers.get('x-request-id')).toBe(id);
      expect(JSON.parse(response.text).request_id).toBe(id);
    },
  );

  test.each([
    'short',
    'x'.repeat(129),
    'with space',
    '{"json":1}',
    'semi;colon',
    'sl/ash/es',
    'caf\xe9-caf\xe9',
  ])('has a generated request ID instead of %j', async (id) => {
    const response = await send('/api/v1/nowhere', { headers: { 'X-Request-Id': id } });
    expect(response.headers.get('x-request-id')).toMatch(/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
    expect(JSON.parse(response.text).request_id).toBe(response.headers.get('x-request-id'));
  });
});

describe('a body', () => {
  const padded = (length: number) => `{"name":1${' '.repeat(length - 10)}}`;
  const asStream = (text: string) => new Blob([text]).stream();

  test('may be 1 MiB long and no longer, with and without a Content-Length', async () => {
    expect((await post(padded(BODY_LIMIT))).status).toBe(422);
    expect((await post(asStream(padded(BODY_LIMIT)))).status).toBe(422);
    const tooLarge = [413, 'PAYLOAD_TOO_LARGE'];
    expect(errorOf(await post(padded(BODY_LIMIT + 1)))).toEqual(tooLarge);
    expect(errorOf(await post(asStream(padded(BODY_LIMIT + 1))))).toEqual(tooLarge);
    expect(errorOf(await post(padded(5 * BODY_LIMIT)))).toEqual(tooLarge);
  });

  test.each([
    ['PATCH', '/v1/projects/{project_id}', 'user'],
    ['DELETE', '/api/v1/projects/{project_id}', 'user'],
    ['PUT', '/api/v1/nowhere', 'user'],
    ['POST', '/platform/v1/hosts', 'platform'],
    ['POST', '/agent/v1/enrol', 'public'],
  ] as const)('is limited for %s %s', async (method, path, access) => {
    const filled = path.replace('{project_id}', ids.project_id ?? '');
    const response = await send(filled, { method, body: padded(BODY_LIMIT + 1), as: TOKENS[access]() });
    expect(errorOf(response)).toEqual([413, 'PAYLOAD_TOO_LARGE']);
  });

  test('is not read before authentication', async () => {
    expect((await post(padded(BODY_LIMIT + 1), { as: null })).status).toBe(401);
  });

  test.each<[string, string | Uint8Array<ArrayBuffer> | undefined]>([
    ['missing', undefined],
    ['empty', ''],
    ['truncated', '{"name":'],
    ['two values', '{"name":"a"} {}'],
    ['a form', 'name=a'],
    ['bytes that are not UTF-8', Uint8Array.from([...Buffer.from('{"name":"'), 0xff, 0xc0, 0x22, 0x7d])],
    [
      'a lone surrogate in bytes',
      Uint8Array.from([...Buffer.from('{"name":"'), 0xed, 0xa0, 0x80, 0x22, 0x7d]),
    ],
    ['UTF-16', Uint8Array.from(Buffer.from('{"name":"a"}', 'utf16le'))],
  ])('that is %s is not JSON', async (_, body) => {
    expect(errorOf(await post(body))).toEqual([400, 'BAD_REQUEST']);
  });

  test.each([
    'null',
    '[]',
    '1',
    '"name"',
    '[{"name":"a"}]',
    '{"name":"a","__proto__":{"b":1}}',
    '{"name":"a","constructor":1}',
  ])('of %s has the wrong values', async (body) => {
    expect(errorOf(await post(body))).toEqual([422, 'VALIDATION_FAILED']);
  });

  test.each(['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data; boundary=x'])(
    'is parsed as JSON when its type is %s',
    async (type) => {
      const response = await post('{"name":"Typed"}', { headers: { 'Content-Type': type } });
      expect(response.status).toBe(201);
    },
  );
});

/** By day a few operations of the whole API, which have the same pipeline; by night all of them. */
const someOf = <T>(operations: readonly T[], each: number): T[] =>
  operations.filter((_, n) => IS_NIGHTLY || n % each === 0);

describe('an undeclared name', () => {
  // Companies' providers add parameters of their own to the redirect, as `session_state`.
  // RFC 6749, 3.1 and RFC 7591, 2 have what a client adds ignored.
  const ofClients = ['authorizeClient', 'registerClient', 'issueAgentTokens', 'revokeAgentToken'];
  const strict = OPERATIONS.filter(({ id }) => ![...ofClients, 'completeCompanySignIn'].includes(id));
  test.each(someOf(strict, 4))('as a query parameter of $id is refused', async (operation) => {
    const query = { ...operation.query, colour: 'red' };
    const response = await callOperation(apiFor(operation.access), { ...operation, query }, ids);
    expect(response).toMatchObject({ status: 422, body: { error: 'VALIDATION_FAILED' } });
    expect(response.body.details).toContainEqual(expect.objectContaining({ path: 'colour' }));
  });

  // The token exchange takes a form, and its failures have the form of RFC 6749.
  const ofJson = OPERATIONS.filter(({ id, body }) => body && ![...ofClients, 'exchangeToken'].includes(id));
  test.each(someOf(ofJson, 3))('as a field of $id is refused', async (operation) => {
    const body = { ...operation.body, colour: 'red' };
    const response = await callOperation(apiFor(operation.access), { ...operation, body }, ids);
    expect(response).toMatchObject({ status: 422, body: { error: 'VALIDATION_FAILED' } });
    expect(response.body.details).toContainEqual(expect.objectContaining({ path: 'colour' }));
  });
});

describe('HEAD', () => {
  const READS = OPERATIONS.filter(({ method }) => method === 'GET');
  test.each(someOf(READS, 4))('of $path is GET without the body', async ({ path, query, access }) => {
    const filled = path.replaceAll(/\{(\w+)\}/g, (_, name: string) => ids[name] ?? '');
    const search = new URLSearchParams(query);
    const as = TOKENS[access]();
    const got = await send(`${filled}?${search}`, { as });
    const head = await send(`${filled}?${search}`, { as, method: 'HEAD' });
    expect([head.status, head.text]).toEqual([got.status, '']);
    expect(head.headers.get('content-type')).toBe(got.headers.get('content-type'));
    expect(head.headers.get('x-ratelimit-limit')).toBe(got.headers.get('x-ratelimit-limit'));
  });
});

describe('the log', () => {
  const linesOf = () =>
    readFileSync(join(devFolder(stack.devDir).logs, 'gateway.log'), 'utf8')
      .split('\n')
      .filter(Boolean);

  test('has one line per request, which describes it and contains no secret', async () => {
    const projectPath = `/api/v1/projects/${ids.project_id}`;
    const secrets = {
      token,
      platformSecret,
      otherToken: await tokenOf({ tenant: 'other-http' }),
      typo: 'hunter2-in-a-path',
      query: 'hunter2-in-a-query',
      body: 'hunter2-in-a-body',
      badToken: 'v4.public.hunter2hunter2',
      projectId: ids.project_id ?? '',
      branchId: ids.branch_id ?? '',
      email: 'owner@http.example',
    };
    const requested: [
      id: string,
      method: string,
      route: string,
      status: number,
      tenant: string | null,
      Promise<unknown>,
    ][] = [];
    const request = (
      method: string,
      path: string,
      route: string,
      status: number,
      tenant: string | null,
      sent: Sent = {},
    ) => {
      const id = `logged-${requested.length}`.padEnd(10, '-');
      const pending = send(path, { ...sent, method, headers: { 'X-Request-Id': id } });
      requested.push([id, method, route, status, tenant, pending]);
    };
    const PROJECT = '/api/v1/projects/:project_id';
    request('GET', '/healthz', '/healthz', 200, null, { as: null });
    request('GET', projectPath, PROJECT, 200, tenantNamed('http'));
    request('GET', projectPath, PROJECT, 404, tenantNamed('other-http'), { as: secrets.otherToken });
    request('GET', projectPath, PROJECT, 401, null, { as: secrets.badToken });
    request(
      'GET',
      `${projectPath}/branches?colour=${secrets.query}`,
      `${PROJECT}/branches`,
      422,
      tenantNamed('http'),
    );
    request(
      'GET',
      `${projectPath}/branches/lookup?name=${secrets.query}`,
      `${PROJECT}/branches/lookup`,
      200,
      tenantNamed('http'),
    );
    request(
      'GET',
      `${projectPath}/branches/${ids.branch_id}/credentials`,
      `${PROJECT}/branches/:branch_ref/credentials`,
      200,
      tenantNamed('http'),
    );
    request('PATCH', projectPath, PROJECT, 422, tenantNamed('http'), {
      body: `{"colour":"${secrets.body}"}`,
    });
    request('PATCH', projectPath, PROJECT, 400, tenantNamed('http'), { body: secrets.body });
    request('GET', `/api/v1/${secrets.typo}`, '/*', 404, tenantNamed('http'));
    request('GET', `/v1/${secrets.typo}`, '/*', 401, null, { as: null });
    request('GET', '/platform/v1/hosts', '/platform/v1/hosts', 200, null, { as: platformSecret });
    request('HEAD', '/api/v1/projects', '/api/v1/projects', 200, tenantNamed('http'));
    request('OPTIONS', '/api/v1/projects', '/*', 401, null, { as: null });
    await Promise.all(requested.map((entry) => entry.at(-1)));

    const { database_url, direct_url } = await new Api(stack.url, token).credentials(
      ids.project_id ?? '',
      ids.branch_id ?? '',
    );
    const requests = () =>
      linesOf().flatMap((line) => {
        const parsed = line.startsWith('{"event":"request"') ? JSON.parse(line) : null;
        return parsed ? [parsed as Record<string, unknown>] : [];
      });
    await eventually(async () => {
      for (const [request_id, method, route, status, tenant] of requested) {
        const why = status >= 400 &&
          route !== '/*' && { code: expect.any(String), reason: expect.any(String) };
        expect(requests().filter((line) => line.request_id === request_id)).toMatchObject([
          {
            event: 'request',
            request_id,
            method,
            route,
            status,
            tenant,
            duration_ms: expect.any(Number),
            ...why,
          },
        ]);
      }
    });
    const log = linesOf().join('\n');
    const passwords = [database_url, direct_url].map((url) => new URL(url).password);
    for (const [name, secret] of [
      ...Object.entries(secrets),
      ...passwords.map((word) => ['password', word] as const),
    ]) {
      expect(secret.length, name).toBeGreaterThan(8);
      expect(log.includes(secret), name).toBe(false);
    }
  });
});
