import { expect, test, vi } from 'vitest';
import { app } from '../../../edge/app.ts';
import type { WindowState } from '../../../edge/rate-limits/limiter-client.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

const window: WindowState = {
  admitted: true,
  limit: 60,
  remaining: 59,
  endsAt: Date.now() + 1000,
  restMs: 1000,
};
const RATE_LIMITER = { idFromName: (name: string) => name, get: () => ({ consume: async () => window }) };

/** Hono's `c.header` copies an existing response, and turns its body into a stream, for each header. */
test('the common headers are set without a copy of the response', async () => {
  const constructed = vi.fn();
  vi.stubGlobal(
    'Response',
    class extends Response {
      constructor(...given: ConstructorParameters<typeof Response>) {
        super(...given);
        constructed();
      }
    },
  );
  const { headers, status } = await app.request('/healthz', {}, { ...SETTINGS, RATE_LIMITER });
  vi.unstubAllGlobals();
  expect(status).toBe(200);
  const names = ['x-request-id', 'x-ratelimit-remaining', 'content-security-policy', 'x-frame-options'];
  expect(names.filter((name) => !headers.has(name))).toEqual([]);
  expect(constructed).toHaveBeenCalledTimes(1);
});

test.each([['/healthz'], ['/api/v1/auth/login', 'POST']])(
  'a response without a count has the rate limit headers too: %s',
  async (path, method = 'GET') => {
    const consume = async () => {
      throw new Error('the object is away');
    };
    const broken = { ...RATE_LIMITER, get: () => ({ consume }) };
    const limits = { LIMIT_PUBLIC_PER_MINUTE: '77', RATE_LIMITER: broken };
    const response = await app.request(path, { method }, { ...SETTINGS, ...limits });
    expect(response.status).toBe(503);
    expect(await response.json()).toMatchObject({ error: 'LIMITER_UNAVAILABLE' });
    const { headers } = response;
    expect(headers.get('x-ratelimit-limit')).toBe('77');
    expect(headers.get('x-ratelimit-remaining')).toBe('0');
    expect(Number(headers.get('x-ratelimit-reset'))).toBeGreaterThan(Date.now() / 1000);
    expect(headers.get('retry-after')).toBe('5');
  },
);
