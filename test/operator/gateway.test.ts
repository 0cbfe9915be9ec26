import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { askReadiness, awaitAnswers } from '../../operator/gateway.ts';
import { freePort } from '../support/free-port.ts';

const READY = [200, '{"status":"ready"}'] as const;
const WITHOUT_HOST = [503, '{"error":"HOST_UNAVAILABLE"}'] as const;
const BROKEN = [500, '{"error":"INTERNAL"}'] as const;

/**
 * A gateway that gives these answers, and the last one for ever.
 * @returns its address and how often it was asked
 */
async function answering(...answers: (readonly [number, string])[]) {
  let asked = 0;
  const server = createServer((_request, response) => {
    const [status = 0, body] = answers[Math.min(asked, answers.length - 1)] ?? [];
    asked += 1;
    response.writeHead(status).end(body);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, asked: () => asked };
}

test.each([
  [READY, 'ready'],
  [WITHOUT_HOST, 'without_host'],
  [BROKEN, { reason: 'it responded to /readyz with status 500' }],
  [[503, 'overloaded'] as const, { reason: 'it responded to /readyz with status 503' }],
])('%j is %j', async (response, answer) => {
  expect(await askReadiness((await answering(response)).url)).toEqual(answer);
});

test('a gateway that cannot be reached is named with the cause', async () => {
  expect(await askReadiness(`http://127.0.0.1:${await freePort()}`)).toEqual({
    reason: expect.stringContaining('ECONNREFUSED'),
  });
});

test('the answers of the former version do not count, because they have to be right three times in a row', async () => {
  const { url, asked } = await answering(READY, BROKEN, READY);
  expect(await awaitAnswers(url, { seconds: 60, needsHost: true, pollMs: 1 })).toBeNull();
  expect(asked()).toBe(5);
});

test('a connected host is needed only where there was one', async () => {
  const { url } = await answering(WITHOUT_HOST);
  expect(await awaitAnswers(url, { seconds: 60, needsHost: false, pollMs: 1 })).toBeNull();
  expect(await awaitAnswers(url, { seconds: 0, needsHost: true, pollMs: 1 })).toContain('no database host');
});
