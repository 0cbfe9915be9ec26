import { DrizzleQueryError } from 'drizzle-orm';
import { Hono } from 'hono';
import { expect, test, vi } from 'vitest';
import type { AppEnv } from '../../../edge/pipeline/context.ts';
import { onError } from '../../../edge/pipeline/render-failure.ts';
import { assignRequestId, logRequest } from '../../../edge/pipeline/request-log.ts';

test('the log has the reason of a failed query, but not its values', async () => {
  const log = vi.spyOn(console, 'log').mockImplementation(() => {});
  const app = new Hono<AppEnv>().use(assignRequestId, logRequest);
  app.onError(onError);
  app.get('/', () => {
    throw new DrizzleQueryError('select ?', ['ada@secret.example'], new Error('D1_ERROR: no such table'));
  });
  expect((await app.request('/')).status).toBe(500);
  const line = String(log.mock.calls.at(-1)?.[0]);
  log.mockRestore();
  expect(JSON.parse(line)).toMatchObject({ code: 'INTERNAL', reason: 'D1_ERROR: no such table' });
  expect(line).toContain('"stack":"Error: D1_ERROR');
  expect(line).not.toContain('ada@secret.example');
});
