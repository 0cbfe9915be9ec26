import { expect, test } from 'vitest';
import { app } from '../../../edge/app.ts';

const KEY = `k1:${Buffer.alloc(32).toString('base64')}`;
const ENV = {
  BASE_URL: 'https://gateway.example.com',
  CREDENTIAL_KEYS: KEY,
  JWT_KEYS: KEY,
  PLATFORM_SECRET: 'p'.repeat(32),
  BRANCH_LIMIT_MAX: '300',
};
const CONTEXT = { waitUntil() {}, passThroughOnException() {}, props: {} } as unknown as ExecutionContext;

test('the check of readiness names an invalid setting with what it accepts, and other requests do not', async () => {
  const ready = await app.request('/readyz', {}, ENV, CONTEXT);
  expect(ready.status).toBe(503);
  const body = (await ready.json()) as { error: string; message: string };
  expect(body.error).toBe('SETTINGS_INVALID');
  expect(body.message).toContain('BRANCH_LIMIT_MAX (integer from 1 to 100)');
  expect(body.message).not.toContain('300');
  const other = await app.request('/version', {}, ENV, CONTEXT);
  expect([other.status, await other.text()]).toEqual([500, expect.not.stringContaining('BRANCH_LIMIT_MAX')]);
});
