import { statSync } from 'node:fs';
import { join } from 'node:path';
import type { Miniflare } from 'miniflare';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { MAIL, Operator, URL_OF_GATEWAY } from '../support/operator/operator.ts';
import { startUploaded } from '../support/operator/uploaded-worker.ts';

/**
 * One command from an empty folder, with the artifacts of this checkout: what was uploaded runs in workerd.
 */

const GENERATED = ['CREDENTIAL_KEYS', 'JWT_KEYS', 'PLATFORM_SECRET'];

let operator: Operator;
let uploaded: Promise<Miniflare> | undefined;
const mails: { url: string; to: string; text: string }[] = [];

beforeAll(async () => {
  operator = await Operator.open();
  await operator.releaseCheckout();
  operator.gateway = async (request) => {
    uploaded ??= startWorker();
    const { method, headers, url } = request;
    const body = method === 'GET' ? undefined : await request.text();
    const response = await (await uploaded).dispatchFetch(url, {
      method,
      headers: [...headers],
      ...(body !== undefined && { body }),
    });
    const kept = ['cache-control', 'content-type'].map((name) => [name, response.headers.get(name) ?? '']);
    return new Response(await response.arrayBuffer(), {
      status: response.status,
      headers: Object.fromEntries(kept),
    });
  };
});

afterAll(async () => {
  await (await uploaded)?.dispose();
  await operator.close();
});

async function startWorker(): Promise<Miniflare> {
  const folder = join(operator.folder, 'workerd');
  const worker = await startUploaded(operator.cloudflare.serving('gate'), folder, (url, body) =>
    mails.push({ url, ...JSON.parse(body) }),
  );
  const database = await worker.getD1Database('DB');
  for (const { statements } of operator.cloudflare.databases.values())
    for (const sql of statements) await database.prepare(sql).run();
  return worker;
}

const ask = (path: string, init?: RequestInit) =>
  operator.gateway(new Request(`${URL_OF_GATEWAY}${path}`, init));

/** What `npm run deploy -- doctor` says. */
async function diagnosed(): Promise<Record<string, string>> {
  const { code, stdout } = await operator.run('doctor', '--json');
  expect(code).toBe(1);
  const [document = ''] = stdout.split('\n');
  const { checks } = JSON.parse(document) as { checks: { check: string; ok: boolean; result: string }[] };
  return Object.fromEntries(checks.map(({ check, ok, result }) => [check, ok ? 'ok' : result]));
}

test('one command deploys the gateway, and shows no secret', async () => {
  const { code, stdout, stderr, commandLines } = await operator.runWatched(...operator.words());
  expect({ code, stdout }, stderr).toEqual({ code: 0, stdout: '' });
  expect(stderr).toContain(`export BRANCHGATE_URL=${URL_OF_GATEWAY}`);
  expect(statSync(operator.secretsFile).mode & 0o777).toBe(0o600);
  const copy = operator.readSecrets();
  expect(Object.keys(copy)).toEqual(['BASE_URL', ...GENERATED]);
  expect(commandLines.filter((line) => line.includes('secret\0bulk'))).not.toEqual([]);
  const shown = [stderr, JSON.stringify(operator.readRecord()), ...commandLines].join('\n');
  for (const name of GENERATED) expect(shown).not.toContain(copy[name]?.split(':').at(-1));
});

test.runIf(IS_NIGHTLY)('a second run changes nothing', async () => {
  const before = operator.cloudflare.writes.length;
  const { code, stderr } = await operator.run(...operator.words());
  expect({ code, stderr }).toEqual({
    code: 0,
    stderr: `${URL_OF_GATEWAY} is complete; nothing was changed.\n`,
  });
  expect(operator.cloudflare.writes.length).toBe(before);
});

test.runIf(IS_NIGHTLY)(
  'doctor finds everything in order but the missing host, and names the command that adds one',
  async () => {
    expect(await diagnosed()).toEqual({
      gateway: `${URL_OF_GATEWAY} answers, but no database host is connected. Add one with \`branchgate host add\`.`,
      database: 'ok',
      secrets: 'ok',
      settings: 'ok',
      mail: 'ok',
      'sign-in provider': 'ok',
      'names of projects': 'ok',
      hosts: 'There is no database host. Add one with `branchgate host add`.',
    });
  },
);

test('the first owner accepts the mailed invitation at the uploaded Worker, and manages the tenant', async () => {
  expect(mails).toMatchObject([{ url: 'https://mail.example.test/send', to: 'ada@example.test' }]);
  const [, invitationId, code] =
    /invitation ([0-9a-f-]{36}):\s+(\d{6})\s/.exec(mails[0]?.text ?? '') ?? expect.unreachable();
  const json = { 'content-type': 'application/json' };
  const acceptance = {
    email: 'ada@example.test',
    invitation_id: invitationId,
    code,
    name: 'Ada',
    password: 'a password of ada',
  };
  const accepted = await ask('/api/v1/auth/invitations/accept', {
    method: 'POST',
    headers: json,
    body: JSON.stringify(acceptance),
  });
  expect(accepted.status).toBe(200);
  const { access_token: token } = (await accepted.json()) as { access_token: string };
  const me = await ask('/api/v1/members', { headers: { authorization: `Bearer ${token}` } });
  expect(await me.json()).toMatchObject({ members: [{ email: 'ada@example.test', role: 'owner' }] });
});

test('the uploaded Worker answers with its console, and to the operator', async () => {
  expect((await ask('/readyz')).status).toBe(503);
  const page = await ask('/');
  expect([page.status, await page.text()]).toEqual([200, expect.stringContaining('<div id="root">')]);
  const headers = {
    authorization: `Bearer ${operator.readSecrets().PLATFORM_SECRET}`,
    'content-type': 'application/json',
  };
  const host = { name: 'db1', db_host: 'db1.example.test', direct_port: 5432, pooled_port: 6432 };
  const registered = await ask('/platform/v1/hosts', { method: 'POST', headers, body: JSON.stringify(host) });
  expect(registered.status).toBe(201);
});

test('a file of the console that does not exist is 404, and no cache keeps it', async () => {
  const { assets } = operator.cloudflare.serving('gate');
  const script = [...assets.keys()].find((path) => /^\/assets\/.*\.js$/.test(path)) ?? expect.unreachable();
  const cached = async (path: string) => {
    const { status, headers } = await ask(path);
    return [status, headers.get('cache-control')];
  };
  expect(await cached(script)).toEqual([200, 'public, max-age=31536000, immutable']);
  for (const path of ['/assets/x', '/assets/', `${script}.map`, '/assets/index.html'])
    expect(await cached(path), path).toEqual([404, 'no-store']);
  const page = await ask('/projects/some-page');
  expect([page.status, await page.text()]).toEqual([200, expect.stringContaining('<div id="root">')]);
});

test.runIf(IS_NIGHTLY)('doctor names each fault with its remedy, and still checks the others', async () => {
  const { cloudflare } = operator;
  operator.gateway = () => new Response('error', { status: 500 });
  for (const { database } of cloudflare.databases.values())
    database.exec('DELETE FROM d1_migrations WHERE id = (SELECT max(id) FROM d1_migrations)');
  const { bindings } = cloudflare.serving('gate');
  bindings.splice(
    bindings.findIndex(({ name }) => name === 'JWT_KEYS'),
    1,
  );
  operator.unreachable.add(MAIL);
  operator.providerStatus = 404;
  expect(await diagnosed()).toEqual({
    gateway: `${URL_OF_GATEWAY} does not answer: it responded to /readyz with status 500. Run \`npm run deploy\` again, and look at the Worker's logs in the dashboard.`,
    database: expect.stringMatching(/^D1 lacks 1 of \d+ migrations\. Run `npm run deploy -- upgrade`\.$/),
    secrets: 'The Worker lacks JWT_KEYS. Run `npm run deploy`.',
    'size of D1': 'The gateway does not say the size of D1 (status 500).',
    settings: 'ok',
    mail: expect.stringMatching(/^mail\.example\.test cannot be reached: .*Check its address\.$/),
    'sign-in provider':
      'https://idp.example.test responds to its discovery document with status 404. Check IDP_URL.',
    'names of projects': 'ok',
    hosts: expect.stringContaining('500'),
  });
});
