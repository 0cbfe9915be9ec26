import { beforeAll, expect, inject, test } from 'vitest';
import { type Send, type Sent, senderTo } from '../../support/send.ts';
import type { Stack } from '../../support/stack/stack.ts';
import { tokenOf } from '../../support/tenants.ts';

export const ORIGINS = ['https://app.example.com', 'https://admin.example.com:8443'];
const BODY_LIMIT = 1024 * 1024;

/** Requests of pages of other origins, of which the stack allows `ORIGINS`. The shared stack allows none. */
export function describeCrossOrigin(running: () => Stack): void {
  let send: Send;
  beforeAll(async () => {
    const { url, devDir } = running();
    send = senderTo(url, await tokenOf({ tenant: 'cross-origin' }, devDir));
  });

  const post = (body: string, more: Sent) => send('/api/v1/projects', { method: 'POST', body, ...more });
  const preflight = (origin: string, more: Sent = {}, by = send) =>
    by('/api/v1/projects', {
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
    const { url } = inject('stack');
    const closed = senderTo(url, null);
    for (const origin of [...ORIGINS, url]) {
      for (const response of [
        await preflight(origin, {}, closed),
        await closed('/healthz', { headers: { Origin: origin } }),
      ]) {
        const names = [...response.headers.keys()].filter((name) => name.startsWith('access-control-'));
        expect(names).toEqual([]);
      }
    }
  });
}
