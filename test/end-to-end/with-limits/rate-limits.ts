import { setTimeout as sleep } from 'node:timers/promises';
import { beforeAll, describe, expect, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../../dev/stack/dev-folder.ts';
import { Api, type ApiResponse, type ProjectBody } from '../../support/api.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { ownTokens } from '../../support/sign-in/own-tokens.ts';
import type { Stack } from '../../support/stack/stack.ts';
import { contentOfD1, tokenOf as signedToken, type TokenOptions } from '../../support/tenants.ts';

/** By night the defaults of the specification, by day fewer, because each of them is sent several times. */
export const READS = IS_NIGHTLY ? 1000 : 100;
export const WRITES = IS_NIGHTLY ? 200 : 25;
/** Requests of SQL over HTTP, for one branch. */
export const SQL_REQUESTS = 40;
/** How many too many. */
const MORE = IS_NIGHTLY ? 200 : 25;
const PUBLIC = 60;

export function describeRateLimits(running: () => Stack): void {
  let stack: Stack;
  let acme: Api;
  /** The first test uses up its reads, and its window has ended by the last test. */
  let busy: ProjectBody;
  let busyUntil = 0;

  beforeAll(async () => {
    stack = running();
    acme = await ownerOf('acme');
    busy = await acme.project('Busy');
  });

  const tokenOf = (options: TokenOptions) => signedToken(options, stack.devDir);
  const ownerOf = async (tenant: string) => new Api(stack.url, await tokenOf({ tenant }));
  const pathOf = ({ id }: Pick<ProjectBody, 'id'>) => `/api/v1/projects/${id}`;
  const from = (address: string) => ({ headers: { 'CF-Connecting-IP': address } });

  const rateOf = ({ headers }: { headers: Headers }) =>
    Object.fromEntries(
      ['limit', 'remaining', 'reset'].map((name) => [
        name,
        Number(headers.get(`x-ratelimit-${name}`) ?? NaN),
      ]),
    ) as Record<'limit' | 'remaining' | 'reset', number>;

  const secondsUntil = (reset: number) => reset - Date.now() / 1000;

  const concurrently = <B>(times: number, request: (n: number) => Promise<ApiResponse<B>>) =>
    Promise.all(Array.from({ length: times }, (_, n) => request(n)));

  /** Number of responses by status. */
  const statusesOf = (responses: readonly ApiResponse[]) =>
    Object.fromEntries(
      [...Map.groupBy(responses, ({ status }) => status)].map(([of, { length }]) => [of, length]),
    );

  /**
   * All records, except the free disk that a reconciliation records, and events on their way to a project's
   * log.
   */
  function records() {
    const { hosts = [], event_outbox: _, ...tables } = contentOfD1(stack.devDir);
    return { ...tables, hosts: hosts.map(({ free_bytes, ...host }) => host) };
  }

  const viewsOf = ({ id }: ProjectBody) =>
    contentOfD1(stack.devDir).audit_events?.filter(
      ({ name, project_id }) => name === 'branch.credentials.viewed' && project_id === id,
    ).length;

  test('SQL over HTTP has a limit of its own for each branch, which uses up none of the others', async () => {
    const sql = await ownerOf('sql-limited');
    const project = await sql.project('Limited');
    await sql.allow(project.id);
    const { database_url } = await sql.credentials(project.id, 'main');
    const before = rateOf(await sql.get(pathOf(project)));
    const responses = await concurrently(SQL_REQUESTS + MORE, async () => {
      const response = await fetch(`${stack.url}/sql`, {
        method: 'POST',
        headers: { 'Neon-Connection-String': database_url },
        body: JSON.stringify({ query: 'select 1', params: [] }),
      });
      const body = (await response.json()) as Record<string, unknown>;
      return { status: response.status, headers: response.headers, body };
    });
    const refused = responses.filter(({ status }) => status === 429);
    // The host refuses requests that wait for a turn longer than two seconds.
    for (const { status, body } of responses)
      expect([200, 429]).toContain(body.code === '53300' ? 429 : status);
    expect(refused.length).toBeGreaterThanOrEqual(MORE);
    expect(refused.length).toBeLessThanOrEqual(MORE + SQL_REQUESTS * 0.1);
    for (const response of refused) {
      expect(response.body).toMatchObject({ error: 'RATE_LIMITED', code: '53300' });
      expect(response.headers.get('retry-after')).toBe(String(response.body.retry_after));
      expect(rateOf(response)).toMatchObject({ limit: SQL_REQUESTS, remaining: 0 });
    }
    const after = rateOf(await sql.get(pathOf(project)));
    if (after.reset === before.reset) expect(after.remaining).toBeGreaterThanOrEqual(before.remaining - 1);
  });

  describe('reads of a project', () => {
    test('of concurrent requests the limit passes, and the others have no effect', async () => {
      const viewsCredentials = (n: number) => n % 3 === 0;
      const responses = await concurrently(READS + MORE, (n) =>
        acme.get(viewsCredentials(n) ? `${pathOf(busy)}/branches/main/credentials` : pathOf(busy)),
      );
      const passed = responses.filter(({ status }) => status === 200);
      const refused = responses.filter(({ status }) => status === 429);
      expect(passed.length + refused.length).toBe(READS + MORE);
      expect(passed.length).toBeLessThanOrEqual(READS);
      // What an isolate has borrowed and returned on a busy machine counts as used meanwhile.
      const late = READS * 0.03;
      expect(passed.length).toBeGreaterThanOrEqual(READS - late);
      const rests = passed.map((response) => rateOf(response).remaining).sort((a, b) => b - a);
      for (const [n, rest] of rests.entries()) {
        expect(rest).toBeLessThanOrEqual(READS - 1 - n);
        expect(rest).toBeGreaterThanOrEqual(READS - 1 - n - late);
      }
      const views = responses.filter(({ status }, n) => status === 200 && viewsCredentials(n));
      expect(viewsOf(busy)).toBe(views.length);

      const windows = new Set(
        responses.map((response) => `${rateOf(response).limit} ${rateOf(response).reset}`),
      );
      expect(windows.size).toBe(1);
      for (const response of refused) {
        expect(response.body).toEqual({
          error: 'RATE_LIMITED',
          message: expect.any(String),
          retry_after: expect.any(Number),
          request_id: response.headers.get('x-request-id'),
        });
        const wait = Number(response.body.retry_after);
        expect(Number.isInteger(wait) && wait >= 1 && wait <= 60).toBe(true);
        expect(response.headers.get('retry-after')).toBe(String(wait));
        expect(rateOf(response)).toMatchObject({ limit: READS, remaining: 0 });
        busyUntil = rateOf(response).reset;
      }
      expect(secondsUntil(busyUntil)).toBeLessThanOrEqual(61);
    });

    test('refuse to show credentials and record no view once they are used up', async () => {
      const before = viewsOf(busy);
      const responses = await concurrently(20, () => acme.get(`${pathOf(busy)}/branches/main/credentials`));
      expect(statusesOf(responses)).toEqual({ 429: 20 });
      expect(viewsOf(busy)).toBe(before);
    });

    test('are counted for that project only, in every spelling of its id', async () => {
      const quiet = await acme.project('Quiet');
      expect(rateOf(await acme.get(pathOf(quiet)))).toMatchObject({ limit: READS, remaining: READS - 1 });
      expect(rateOf(await acme.get(`/api/v1/projects/${quiet.id.toUpperCase()}`)).remaining).toBe(READS - 2);
      const encoded = quiet.id.replace(/^./, (c) => `%${c.charCodeAt(0).toString(16)}`);
      expect(rateOf(await acme.get(`/api/v1/projects/${encoded}/jobs`)).remaining).toBe(READS - 3);
      expect(rateOf(await acme.get('/api/v1/projects'))).toMatchObject({
        limit: READS,
        remaining: READS - 1,
      });
    });

    test('of another tenant that knows the id are not counted', async () => {
      const known = await acme.project('Known elsewhere');
      expect(rateOf(await acme.get(pathOf(known))).remaining).toBe(READS - 1);
      const rival = await ownerOf('rival');
      expect(statusesOf(await concurrently(10, () => rival.get(pathOf(known))))).toEqual({ 404: 10 });
      expect((await rival.get(pathOf(busy))).status).toBe(404);
      expect(rateOf(await acme.get(pathOf(known))).remaining).toBe(READS - 2);
    });

    test('of invented ids are counted together, and not against an existing project', async () => {
      const guesser = await ownerOf('guesser');
      const known = await guesser.project('Known');
      // They share the tenant's bucket for requests outside its projects.
      const rest = IS_NIGHTLY ? 100 : 25;
      expect(statusesOf(await concurrently(READS - rest, () => guesser.get('/api/v1/projects')))).toEqual({
        200: READS - rest,
      });
      const responses = await concurrently(2 * rest, () => guesser.get(pathOf({ id: crypto.randomUUID() })));
      expect(statusesOf(responses)).toEqual({ 404: rest, 429: rest });
      expect((await guesser.get('/api/v1/projects')).status).toBe(429);
      const response = await guesser.get(pathOf(known));
      expect([response.status, rateOf(response).remaining]).toEqual([200, READS - 1]);
    });
  });

  describe('writes of a project', () => {
    test('are counted separately: exactly the limit passes, and a refused one changes nothing', async () => {
      const written = await acme.project('Written');
      const responses = await concurrently(WRITES + 10, (n) =>
        acme.patch(pathOf(written), { name: `Name ${n}` }),
      );
      expect(statusesOf(responses)).toEqual({ 200: WRITES, 429: 10 });
      const renamed = () =>
        contentOfD1(stack.devDir).audit_events?.filter(({ project_id }) => project_id === written.id).length;
      expect(renamed()).toBe(1 + WRITES);

      const before = records();
      const refused = await Promise.all([
        acme.delete(pathOf(written)),
        acme.patch(`/v1/projects/${written.id}`, { storage_quota_gib: 1 }),
        acme.post(`${pathOf(written)}/branches`, { branch_name: 'refused' }),
        acme.post(`${pathOf(written)}/network-rules`, { cidr: '203.0.113.0/24' }),
      ]);
      expect(statusesOf(refused)).toEqual({ 429: 4 });
      expect(rateOf(refused[0])).toMatchObject({ limit: WRITES, remaining: 0 });
      expect(records()).toEqual(before);

      const reading = await acme.get(pathOf(written));
      expect([reading.status, rateOf(reading).remaining]).toEqual([200, READS - 1]);
    });
  });

  test('writes of a tenant outside its projects are counted, including invalid ones, and a refused one has no effect', async () => {
    const maker = await ownerOf('maker');
    await maker.get('/api/v1/projects');
    const responses = await concurrently(WRITES + 5, () => maker.post('/api/v1/projects', {}));
    expect(statusesOf(responses)).toEqual({ 422: WRITES, 429: 5 });
    const before = records();
    expect((await maker.post('/api/v1/projects', { name: 'Refused' })).status).toBe(429);
    expect(records()).toEqual(before);
    expect(rateOf(await maker.get('/api/v1/projects')).remaining).toBe(READS - 2);
  });

  test('requests of a user without a tenant are counted for that user', async () => {
    const nomad = new Api(stack.url, await tokenOf({ tenant: null, email: 'nomad@example.com' }));
    const other = new Api(stack.url, await tokenOf({ tenant: null, email: 'other@example.com' }));
    const rests = [];
    for (const api of [nomad, nomad, other]) rests.push(rateOf(await api.get('/api/v1/me')).remaining);
    expect(rests).toEqual([READS - 1, READS - 2, READS - 1]);
    expect(rateOf(await nomad.post('/api/v1/auth/logout', {}))).toMatchObject({
      limit: WRITES,
      remaining: WRITES - 1,
    });
  });

  describe('an address', () => {
    test('gets 60 public responses a minute', async () => {
      const anonymous = new Api(stack.url, null);
      const responses = await concurrently(PUBLIC + 5, () => anonymous.get('/healthz', from('198.51.100.7')));
      expect(statusesOf(responses)).toEqual({ 200: PUBLIC, 429: 5 });
      expect((await anonymous.get('/api/v1/openapi.json', from('198.51.100.7'))).status).toBe(429);
      expect((await anonymous.get('/healthz', from('::ffff:198.51.100.7'))).status).toBe(429);
      // A host behind the same address can still reconnect.
      const link = await anonymous.get(`/agent/v1/link?host_id=${crypto.randomUUID()}`, from('198.51.100.7'));
      expect(link.status).toBe(426);
      const neighbour = await anonymous.get('/healthz', from('198.51.100.8'));
      expect([neighbour.status, rateOf(neighbour)]).toMatchObject([
        200,
        { limit: PUBLIC, remaining: PUBLIC - 1 },
      ]);
    });

    test.runIf(IS_NIGHTLY)('of IPv6 counts as its /64', async () => {
      const anonymous = new Api(stack.url, null);
      const responses = await concurrently(PUBLIC + 5, (n) =>
        anonymous.get('/healthz', from(`2001:db8:0:7:${n.toString(16)}::1`)),
      );
      expect(statusesOf(responses)).toEqual({ 200: PUBLIC, 429: 5 });
      expect((await anonymous.get('/healthz', from('2001:db8:0:8::1'))).status).toBe(200);
    });

    test('may fail to authenticate 60 times a minute, and valid tokens are still accepted', async () => {
      const there = from('198.51.100.9');
      const forger = new Api(stack.url, 'v4.public.AAAA');
      const responses = await concurrently(PUBLIC + 5, () => forger.get('/api/v1/projects', there));
      expect(statusesOf(responses)).toEqual({ 401: PUBLIC, 429: 5 });
      for (const response of responses.filter(({ status }) => status === 429)) {
        expect(response.body).toMatchObject({ error: 'RATE_LIMITED', retry_after: expect.any(Number) });
        expect(response.headers.has('www-authenticate')).toBe(false);
      }
      expect((await forger.get('/api/v1/nowhere', there)).status).toBe(429);
      // Wrong platform secrets are counted separately.
      expect((await forger.get('/platform/v1/hosts', there)).status).toBe(401);
      expect((await acme.get('/api/v1/projects', there)).status).toBe(200);
      expect((await forger.get('/healthz', there)).status).toBe(200);
      expect((await forger.get('/api/v1/projects', from('198.51.100.10'))).status).toBe(401);
    });
  });

  describe('the three headers', () => {
    const LARGE = 'x'.repeat(1024 * 1024 + 1);
    const UNKNOWN = '00000000-0000-4000-8000-000000000000';
    const ENROLMENT = JSON.stringify({
      enrolment_token: 'x'.repeat(43),
      public_key: { kty: 'OKP', crv: 'Ed25519', x: 'x'.repeat(43) },
    });
    const WRONG_PASSWORD = JSON.stringify({ email: 'ada@example.com', password: 'wrong' });
    const tokens: Record<string, () => Promise<string> | string | null> = {
      anonymous: () => null,
      owner: () => tokenOf({ tenant: 'headers' }),
      viewer: () => tokenOf({ tenant: 'headers', role: 'viewer' }),
      'a user without a tenant': () => tokenOf({ tenant: null }),
      'a half signed-in user': () => ownTokens(stack).preAuth(),
      'the platform': () => gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET,
    };

    test.each([
      ['owner', 200, 'GET', '/api/v1/projects'],
      ['owner', 201, 'POST', '/api/v1/projects', '{"name":"Made"}'],
      ['owner', 200, 'HEAD', '/api/v1/projects'],
      ['owner', 404, 'GET', `/api/v1/jobs/${UNKNOWN}`],
      ['owner', 404, 'GET', `/api/v1/projects/${UNKNOWN}`],
      ['owner', 404, 'GET', '/api/v1/nowhere'],
      ['owner', 404, 'PUT', '/api/v1/projects', '{}'],
      ['owner', 400, 'POST', '/api/v1/projects', '{'],
      ['owner', 413, 'POST', '/api/v1/projects', LARGE],
      ['owner', 422, 'POST', '/api/v1/projects', '{}'],
      ['owner', 401, 'GET', '/platform/v1/hosts'],
      ['viewer', 403, 'POST', '/api/v1/projects', '{"name":"No"}'],
      ['a user without a tenant', 403, 'GET', '/api/v1/projects'],
      ['anonymous', 401, 'GET', '/api/v1/projects'],
      ['anonymous', 204, 'OPTIONS', '/api/v1/projects'],
      ['anonymous', 200, 'GET', '/healthz'],
      ['anonymous', 200, 'GET', '/readyz'],
      ['anonymous', 200, 'GET', '/docs'],
      ['anonymous', 422, 'GET', '/docs?colour=red'],
      ['anonymous', 302, 'GET', '/api/v1/auth/idp/login'],
      ['anonymous', 400, 'GET', '/api/v1/auth/idp/callback'],
      ['anonymous', 422, 'POST', '/api/v1/auth/login', '{}'],
      ['anonymous', 401, 'POST', '/api/v1/auth/login', WRONG_PASSWORD],
      ['anonymous', 401, 'POST', '/api/v1/auth/refresh', '{"refresh_token":"x"}'],
      ['anonymous', 401, 'POST', '/api/v1/auth/2fa/setup'],
      ['a half signed-in user', 200, 'POST', '/api/v1/auth/2fa/setup'],
      ['a half signed-in user', 401, 'GET', '/api/v1/me'],
      ['owner', 200, 'GET', '/api/v1/me'],
      ['a user without a tenant', 200, 'GET', '/api/v1/me'],
      ['a user without a tenant', 204, 'POST', '/api/v1/auth/logout'],
      ['anonymous', 401, 'POST', '/agent/v1/enrol', ENROLMENT],
      ['anonymous', 426, 'GET', `/agent/v1/link?host_id=${UNKNOWN}`],
      ['the platform', 200, 'GET', '/platform/v1/hosts'],
      ['the platform', 404, 'GET', '/platform/v1/nowhere'],
    ])('%s: %i of %s %s', async (who, status, method, path, body?: string) => {
      const token = await tokens[who]?.();
      const response = await fetch(`${stack.url}${path}`, {
        method,
        redirect: 'manual',
        headers: { ...from('198.51.100.12').headers, ...(token && { Authorization: `Bearer ${token}` }) },
        ...(body !== undefined && { body }),
      });
      await response.body?.cancel();
      expect(response.status).toBe(status);
      const { limit, remaining, reset } = rateOf(response);
      expect([PUBLIC, READS, WRITES]).toContain(limit);
      expect(remaining).toBeGreaterThanOrEqual(0);
      expect(remaining).toBeLessThan(limit);
      expect(secondsUntil(reset)).toBeGreaterThan(0);
      expect(secondsUntil(reset)).toBeLessThanOrEqual(61);
    });
  });

  describe.runIf(IS_NIGHTLY)('a crash of the gateway', () => {
    test('loses no failed authentication, and no request older than a second', async () => {
      const there = from('198.51.100.11');
      const project = await acme.project('Before the crash');
      const before = (await concurrently(5, () => acme.get(pathOf(project)))).map(rateOf);
      // A busy machine stores them later than after the promised second.
      await sleep(4000);
      const forger = new Api(stack.url, 'v4.public.AAAA');
      await concurrently(10, () => forger.get('/api/v1/projects', there));
      await stack.kill('gateway');
      await stack.start('gateway');
      const after = rateOf(await acme.get(pathOf(project)));
      expect(after).toMatchObject({ remaining: READS - 6, reset: before[0]?.reset });
      expect(rateOf(await forger.get('/api/v1/projects', there)).remaining).toBe(PUBLIC - 11);
    });
  });
}
