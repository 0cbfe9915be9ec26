import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import type { Server } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { mailReceiver } from '../../../dev/identity-provider/mail-receiver.ts';
import { openIdProvider } from '../../../dev/identity-provider/provider.ts';
import { freePort } from '../../support/free-port.ts';

const MAIL = { from: 'a@example.com', to: 'b@example.com', subject: 'S', text: 'T', html: '<p>T</p>' };

let stateDir: string;
let mailDir: string;
let issuer: string;
let server: Server;

beforeAll(async () => {
  stateDir = mkdtempSync(join(tmpdir(), 'branchgate-mail-'));
  mailDir = join(stateDir, 'mail');
  issuer = `http://127.0.0.1:${await freePort()}`;
  const settings = {
    issuer,
    stateDir,
    gatewayUrl: 'http://127.0.0.1:8787',
    clientSecret: 'secret of the test',
    serviceName: 'branchgate',
  };
  const provider = await openIdProvider(settings);
  provider.use(mailReceiver(mailDir, 'key'));
  await new Promise<void>((resolve) => {
    server = provider.listen(Number(new URL(issuer).port), '127.0.0.1', resolve);
  });
});
afterAll(async () => {
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
  rmSync(stateDir, { recursive: true });
});

const post = async (body: unknown, headers: Record<string, string> = {}) =>
  (
    await fetch(`${issuer}/mail`, {
      method: 'POST',
      headers: { authorization: 'Bearer key', ...headers },
      body: JSON.stringify(body),
    })
  ).status;

const delivered = () =>
  readdirSync(mailDir).map((name) => ({ name, mail: JSON.parse(readFileSync(join(mailDir, name), 'utf8')) }));

test('a mail is one JSON file, even if it is sent twice with the same key', async () => {
  expect(await post(MAIL, { 'idempotency-key': 'first' })).toBe(200);
  expect(await post(MAIL, { 'idempotency-key': 'first' })).toBe(200);
  expect(delivered()).toEqual([{ name: expect.stringMatching(/^\d{4}-.*_first\.json$/), mail: MAIL }]);
  expect(await post({ ...MAIL, subject: 'Second' }, { 'idempotency-key': '../../escape' })).toBe(200);
  expect(await post({ ...MAIL, subject: 'Third' })).toBe(200);
  expect(delivered().map(({ mail }) => mail.subject)).toEqual(['S', 'Second', 'Third']);
});

test('an invalid mail or a wrong API key is refused', async () => {
  const before = delivered();
  expect(await post(MAIL, { authorization: 'Bearer other' })).toBe(401);
  expect(await post({ ...MAIL, html: undefined })).toBe(422);
  expect(await post({ ...MAIL, bcc: 'c@example.com' })).toBe(422);
  expect(delivered()).toEqual(before);
});
