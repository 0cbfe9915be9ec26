import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api } from '../support/api.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { callOperation, createResources, type Ids, OPERATIONS } from '../support/operations.ts';
import { ownTokens } from '../support/sign-in/own-tokens.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

const ORIGINS = ['https://app.example.com', 'https://admin.example.com:8443'];
const BODY_LIMIT = 1024 * 1024;

/** Allows the origins in `ORIGINS`. The shared stack allows none. */
let stack: Stack;
let token: string;
let platformSecret: string;
let preAuthToken: string;
let ids: Ids;

beforeAll(async () => {
  // Every operation is called several times in a minute.
  const unlimited = { LIMIT_READS_PER_MINUTE: '100000', LIMIT_WRITES_PER_MINUTE: '100000' };
  stack = await startStack({ restarts: false, env: { CORS_ORIGINS: ORIGINS.join(', '), ...unlimited } });
  token = await stack.token();
  platformSecret = gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET;
  preAuthToken = await ownTokens(stack).preAuth();
  const api = new Api(stack.url, token);
  const platform = new Api(stack.url, platformSecret);
  const { body: listed } = await platform.get<{ hosts: { id: string }[] }>('/platform/v1/hosts');
  ids = { ...(await createResources(api)), host_id: listed.hosts[0]?.id ?? '' };
});
afterAll(() => stack?.stop());

interface Sent {
  method?: string;
  headers?: Record<string, string>;
  body?: string | Uint8Array<ArrayBuffer> | ReadableStream;
  as?: string | null;
  url?: string;
}

let sent = 0;
/**
 * Sends a request from a new client address. The gateway does not read a body that it refuses, which ends the
 * connection.
 */
async function send(path: string, { as = token, url = stack.url, headers, ...init }: Sent = {}) {
  sent += 1;
  const response = await fetch(`${url}${path}`, {
    ...init,
    redirect: 'manual',
    headers: {
      connection: 'close',
      'CF-Connecting-IP': `198.51.${100 + (sent >> 8)}.${sent & 255}`,
      ...(as !== null && { Authorization: `Bearer ${as}` }),
      ...headers,
    },
    ...(init.body instanceof ReadableStream && { duplex: 'half' }),
  });
  return { status: response.status, headers: response.headers, text: await response.text() };
}

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

describe('CORS', () => {
  const preflight = (origin: string, more: Sent = {}) =>
    send('/api/v1/projects', {
      method: 'OPTIONS',
      as: null,
      ...more,
      headers: { Origin: origin, 'Access-Control-Request-Method': 'POST', ...more.headers },
    });

  test.each(ORIGINS)('%s passes the preflight', async (origin) => {
    const response = await preflight(origin, {
      headers: { 'Access-Control-Request-Headers': 'authorization,content-type,idempotency-key' },
    });
    expect(response.status).toBe(204);
    const valuesOf = (name: string) => (response.headers.get(`access-control-${name}`) ?? '').split(',');
    expect(valuesOf('allow-origin')).toEqual([origin]);
    expect(valuesOf('allow-methods')).toEqual(
      expect.arrayContaining(['GET', 'POST', 'PUT', 'PATCH', 'DELETE']),
    );
    expect(valuesOf('allow-headers')).toEqual(
      expect.arrayContaining(['Authorization', 'Content-Type', 'Idempotency-Key', 'Prefer', 'X-Request-Id']),
    );
    expect(response.headers.get('access-control-allow-credentials')).toBeNull();
    expect(response.headers.get('vary')).toContain('Origin');
    expect(response.headers.get('x-ratelimit-limit')).toBe('60');
  });

  test('responses, including errors, are readable, with the headers that a client needs', async () => {
    const [origin = ''] = ORIGINS;
    const address = { 'CF-Connecting-IP': '203.0.113.7' };
    const responses = [
      await send('/api/v1/projects', { headers: { Origin: origin } }),
      await send('/api/v1/projects', { headers: { Origin: origin }, as: null }),
      await send('/api/v1/nowhere', { headers: { Origin: origin } }),
      await post('{}', { headers: { Origin: origin } }),
      await post('x'.repeat(BODY_LIMIT + 1), { headers: { Origin: origin } }),
    ];
    for (let n = 0; n <= 60; n++) await send('/healthz', { as: null, headers: address });
    responses.push(await send('/healthz', { as: null, headers: { ...address, Origin: origin } }));
    expect(responses.map(({ status }) => status)).toEqual([200, 401, 404, 422, 413, 429]);
    for (const { headers } of responses) {
      expect(headers.get('access-control-allow-origin')).toBe(origin);
      expect(headers.get('vary')).toContain('Origin');
      const exposed = (headers.get('access-control-expose-headers') ?? '').split(',');
      expect(exposed).toEqual(
        expect.arrayContaining([
          'X-Request-Id',
          'X-RateLimit-Remaining',
          'Retry-After',
          'Idempotency-Replayed',
        ]),
      );
    }
  });

  test.each([
    'https://evil.example.com',
    'https://app.example.com.evil.example',
    'https://evil.example/https://app.example.com',
    'http://app.example.com',
    'https://app.example.com:8443',
    'https://admin.example.com',
    'null',
    '*',
  ])('%s gets no CORS header', async (origin) => {
    for (const response of [
      await preflight(origin),
      await send('/api/v1/projects', { headers: { Origin: origin } }),
    ]) {
      expect(response.headers.get('access-control-allow-origin')).toBeNull();
    }
  });

  test('no origin gets a CORS header where none is configured', async () => {
    const closed = { url: inject('stack').url };
    for (const origin of [...ORIGINS, closed.url]) {
      for (const response of [
        await preflight(origin, closed),
        await send('/healthz', { ...closed, as: null, headers: { Origin: origin } }),
      ]) {
        const names = [...response.headers.keys()].filter((name) => name.startsWith('access-control-'));
        expect(names).toEqual([]);
      }
    }
  });
});

describe('every response', () => {
  test.each([
    ['/healthz', 200],
    ['/docs', 200],
    ['/api/v1/openapi.json', 200],
    ['/api/v1/projects', 200],
    ['/api/v1/nowhere', 404],
    ['/platform/v1/hosts', 401],
  ])('of %s has the security headers', async (path, status) => {
    const { headers, ...response } = await send(path);
    expect(response.status).toBe(status);
    expect(headers.get('content-security-policy')).toMatch(/default-src 'none'.*frame-ancestors 'none'/);
    expect(headers.get('x-content-type-options')).toBe('nosniff');
    expect(headers.get('referrer-policy')).toBe('no-referrer');
    expect(headers.get('strict-transport-security')).toMatch(/^max-age=\d{8}/);
    expect(headers.get('x-powered-by')).toBeNull();
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
  const strict = OPERATIONS.filter(({ id }) => id !== 'completeCompanySignIn');
  test.each(someOf(strict, 4))('as a query parameter of $id is refused', async (operation) => {
    const query = { ...operation.query, colour: 'red' };
    const response = await callOperation(apiFor(operation.access), { ...operation, query }, ids);
    expect(response).toMatchObject({ status: 422, body: { error: 'VALIDATION_FAILED' } });
    expect(response.body.details).toContainEqual(expect.objectContaining({ path: 'colour' }));
  });

  // The token exchange takes a form, and its failures have the form of RFC 6749.
  const ofJson = OPERATIONS.filter(({ id, body }) => body && id !== 'exchangeToken');
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
      otherToken: await stack.token({ tenant: 'other', email: 'eve@example.com' }),
      typo: 'hunter2-in-a-path',
      query: 'hunter2-in-a-query',
      body: 'hunter2-in-a-body',
      badToken: 'v4.public.hunter2hunter2',
      projectId: ids.project_id ?? '',
      branchId: ids.branch_id ?? '',
      email: 'ada@example.com',
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
    request('GET', projectPath, PROJECT, 200, 'acme');
    request('GET', projectPath, PROJECT, 404, 'other', { as: secrets.otherToken });
    request('GET', projectPath, PROJECT, 401, null, { as: secrets.badToken });
    request('GET', `${projectPath}/branches?colour=${secrets.query}`, `${PROJECT}/branches`, 422, 'acme');
    request(
      'GET',
      `${projectPath}/branches/lookup?name=${secrets.query}`,
      `${PROJECT}/branches/lookup`,
      200,
      'acme',
    );
    request(
      'GET',
      `${projectPath}/branches/${ids.branch_id}/credentials`,
      `${PROJECT}/branches/:branch_ref/credentials`,
      200,
      'acme',
    );
    request('PATCH', projectPath, PROJECT, 422, 'acme', { body: `{"colour":"${secrets.body}"}` });
    request('PATCH', projectPath, PROJECT, 400, 'acme', { body: secrets.body });
    request('GET', `/api/v1/${secrets.typo}`, '/*', 404, 'acme');
    request('GET', `/v1/${secrets.typo}`, '/*', 401, null, { as: null });
    request('GET', '/platform/v1/hosts', '/platform/v1/hosts', 200, null, { as: platformSecret });
    request('HEAD', '/api/v1/projects', '/api/v1/projects', 200, 'acme');
    request('OPTIONS', '/api/v1/projects', '/*', 204, null, { as: null });
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

describe('health', () => {
  test('is reported for the gateway alone and for the whole service', async () => {
    const health = async () => [
      (await send('/healthz', { as: null })).status,
      (await send('/readyz', { as: null })).status,
    ];
    expect(await health()).toEqual([200, 200]);
    await stack.kill('agent');
    await eventually(async () => expect(await health()).toEqual([200, 503]));
    const { headers, ...response } = await send('/readyz', { as: null });
    expect(errorOf(response)).toEqual([503, 'HOST_UNAVAILABLE']);
    expect(Number(headers.get('retry-after'))).toBeGreaterThan(0);
    await stack.start('agent');
    await eventually(async () => expect(await health()).toEqual([200, 200]));
  });
});
