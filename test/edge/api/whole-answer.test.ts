import { expect, test, vi } from 'vitest';
import { app } from '../../../edge/app.ts';
import type { WindowState } from '../../../edge/rate-limits/rate-limiter.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

const reading: WindowState = {
  admitted: true,
  limit: 60,
  remaining: 59,
  endsAt: Date.now() + 1000,
  restMs: 1000,
};
const RATE_LIMITER = { idFromName: (name: string) => name, get: () => ({ consume: async () => reading }) };

/** Hono's `c.header` copies an answer that is there already: a stream of its body, for each header. */
test('the headers of every answer join it without a copy of it', async () => {
  const made = vi.fn();
  vi.stubGlobal(
    'Response',
    class extends Response {
      constructor(...given: ConstructorParameters<typeof Response>) {
        super(...given);
        made();
      }
    },
  );
  const { headers, status } = await app.request('/healthz', {}, { ...SETTINGS, RATE_LIMITER });
  vi.unstubAllGlobals();
  expect(status).toBe(200);
  const names = ['x-request-id', 'x-ratelimit-remaining', 'content-security-policy', 'x-frame-options'];
  expect(names.filter((name) => !headers.has(name))).toEqual([]);
  expect(made).toHaveBeenCalledTimes(1);
});
