import { createHash } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { eq } from 'drizzle-orm';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openDatabase } from '../../../edge/database/database.ts';
import { projects } from '../../../edge/database/schema.ts';
import { makeHostKey } from '../../support/host/host-key.ts';
import { insertProject } from '../../support/records/records.ts';
import { type LinkGateway, startLinkGateway } from '../../support/worker/link-gateway.ts';
import { PLATFORM_SECRET } from '../../support/worker/worker.ts';

let stateDir: string;
let gateway: LinkGateway;

beforeAll(async () => {
  stateDir = await mkdtemp(join(tmpdir(), 'branchgate-enrolment-'));
  gateway = await startLinkGateway({ stateDir });
});

afterAll(async () => {
  await gateway.stop();
  await rm(stateDir, { recursive: true });
});

const host = { name: 'a', db_host: '127.0.0.1', direct_port: 5432, pooled_port: 6432 };
const authorization = `Bearer ${PLATFORM_SECRET}`;

const enrol = (enrolment_token: string, public_key: unknown) =>
  gateway.post('/agent/v1/enrol', { enrolment_token, public_key });

async function passTheHour(hostId: string): Promise<void> {
  const database = gateway.database;
  const expire = database.prepare('update hosts set enrolment_expires_at = ? where id = ?');
  await expire.bind(Date.now() - 1, hostId).run();
}

describe('POST /platform/v1/hosts', () => {
  test.each([
    ['no secret', {}],
    ['a wrong secret', { authorization: 'Bearer wrong' }],
    ['the secret without its scheme', { authorization: PLATFORM_SECRET }],
    ['the beginning of the secret', { authorization: authorization.slice(0, -1) }],
  ])('%s is unauthenticated', async (_name, headers) => {
    const response = await gateway.post('/platform/v1/hosts', host, headers);
    expect([response.status, await response.json()]).toMatchObject([401, { error: 'UNAUTHENTICATED' }]);
  });

  test.each([
    ['an unknown field', { ...host, id: 1 }],
    ['no address', { name: 'a' }],
    ['a port that is none', { ...host, direct_port: 65_536 }],
    ['a name for a path', { ...host, name: '../a' }],
    ['a host with a port', { ...host, db_host: 'a:1' }],
    ['a host with a user', { ...host, db_host: 'evil@a' }],
    [
      'a private key as its authority',
      { ...host, ca_certificate: '-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----' },
    ],
  ])('%s is invalid', async (_name, body) => {
    expect((await gateway.post('/platform/v1/hosts', body, { authorization })).status).toBe(422);
  });

  test('returns a token of which only the digest is stored', async () => {
    const response = await gateway.post('/platform/v1/hosts', { ...host, name: 'digest' }, { authorization });
    expect(response.status).toBe(201);
    const body = (await response.json()) as { host_id: string; enrolment_token: string };
    expect(body).toEqual({
      host_id: expect.stringMatching(/^[0-9a-f-]{36}$/),
      name: 'digest',
      enrolment_token: expect.stringMatching(/^[\w-]{43}$/),
      join_command: `branchgate-agent join --gateway http://127.0.0.1 --host digest --token ${body.enrolment_token}`,
      expires_at: expect.stringMatching(/Z$/),
      replaced: false,
    });
    const row = await gateway.database.prepare('select * from hosts where id = ?').bind(body.host_id).first();
    expect(row?.enrolment_token_hash).toBe(createHash('sha256').update(body.enrolment_token).digest('hex'));
    expect(Object.values(row ?? {})).not.toContain(body.enrolment_token);
  });

  test('a repeated registration before the enrolment renews the token', async () => {
    const first = await gateway.registerHost('renewed');
    const second = await gateway.registerHost('renewed');
    expect([first.replaced, second.replaced]).toEqual([false, true]);
    expect(second.host_id).toBe(first.host_id);
    const { publicKey } = await makeHostKey();
    expect((await enrol(first.enrolment_token, publicKey)).status).toBe(401);
    expect((await enrol(second.enrolment_token, publicKey)).status).toBe(200);
  });

  test('an enrolled host is not changed', async () => {
    const { enrolment_token } = await gateway.registerHost('taken');
    await enrol(enrolment_token, (await makeHostKey()).publicKey);
    const response = await gateway.post('/platform/v1/hosts', { ...host, name: 'taken' }, { authorization });
    expect([response.status, await response.json()]).toMatchObject([409, { error: 'HOST_EXISTS' }]);
  });
});

describe('a registered host', () => {
  test('has the usual ports by default, and can be renamed', async () => {
    const { host_id } = await gateway.registerHost('first-name');
    const path = `/hosts/${host_id}`;
    expect(await (await gateway.asOperator('GET', path)).json()).toMatchObject({
      name: 'first-name',
      db_host: 'db.example.com',
      direct_port: 5432,
      pooled_port: 6432,
      project_count: 0,
    });
    const change = { db_host: 'db2.example.com', pooled_port: 7432 };
    const changed = await (await gateway.asOperator('PATCH', path, change)).json();
    expect(changed).toMatchObject({ ...change, direct_port: 5432 });
    expect((await gateway.asOperator('PATCH', path, { db_host: 'evil@a' })).status).toBe(422);
    expect(await (await gateway.asOperator('GET', path)).json()).toEqual(changed);
  });

  test('with a project is not removed; without one its name is free, and its token is worthless', async () => {
    const { host_id, enrolment_token } = await gateway.registerHost('leaving');
    const db = openDatabase(gateway.database);
    const projectId = crypto.randomUUID();
    await insertProject(db, host_id, projectId);
    const remove = () => gateway.asOperator('DELETE', `/hosts/${host_id}`);
    const refused = await remove();
    expect([refused.status, await refused.json()]).toMatchObject([
      409,
      { error: 'HOST_NOT_EMPTY', projects: 1 },
    ]);
    expect(await (await gateway.asOperator('GET', `/hosts/${host_id}`)).json()).toMatchObject({
      project_count: 1,
    });
    await db.delete(projects).where(eq(projects.id, projectId));
    expect((await remove()).status).toBe(204);
    expect((await remove()).status).toBe(404);
    expect((await enrol(enrolment_token, (await makeHostKey()).publicKey)).status).toBe(401);
    expect((await gateway.registerHost('leaving')).host_id).not.toBe(host_id);
  });
});

describe('POST /agent/v1/enrol', () => {
  test('the token works once', async () => {
    const { host_id, enrolment_token } = await gateway.registerHost('once');
    const response = await enrol(enrolment_token, (await makeHostKey()).publicKey);
    expect([response.status, await response.json()]).toEqual([200, { host_id }]);
    expect((await enrol(enrolment_token, (await makeHostKey()).publicKey)).status).toBe(401);
  });

  test('the same key gets the same response again until the token expires', async () => {
    const { host_id, enrolment_token } = await gateway.registerHost('again');
    const { kty, crv, x } = (await makeHostKey()).publicKey;
    await enrol(enrolment_token, { kty, crv, x });
    expect(await (await enrol(enrolment_token, { x, crv, kty })).json()).toEqual({ host_id });
    await passTheHour(host_id);
    expect((await enrol(enrolment_token, { kty, crv, x })).status).toBe(401);
  });

  test('with a renewed token another key replaces the present one, which is valid until then', async () => {
    const { host_id, enrolment_token } = await gateway.registerHost('lost');
    const [lost, replacement, third] = await Promise.all([makeHostKey(), makeHostKey(), makeHostKey()]);
    await enrol(enrolment_token, lost.publicKey);
    const renew = (id: string, headers = { authorization }) =>
      gateway.post(`/platform/v1/hosts/${id}/enrolment`, undefined, headers);
    const renewed = (await (await renew(host_id)).json()) as { host_id: string; enrolment_token: string };
    expect(renewed.host_id).toBe(host_id);
    const keyOnRecord = async () =>
      JSON.parse(
        (await gateway.database
          .prepare('select public_key from hosts where id = ?')
          .bind(host_id)
          .first<string>('public_key')) ?? '',
      ).x;
    expect((await enrol(enrolment_token, replacement.publicKey)).status, 'the old token').toBe(401);
    expect(await keyOnRecord()).toBe(lost.publicKey.x);
    expect((await enrol(renewed.enrolment_token, replacement.publicKey)).status).toBe(200);
    expect(await keyOnRecord()).toBe(replacement.publicKey.x);
    expect((await enrol(renewed.enrolment_token, third.publicKey)).status, 'it works once').toBe(401);
    expect((await enrol(renewed.enrolment_token, replacement.publicKey)).status, 'repeated').toBe(200);

    const next = (await (await renew(host_id)).json()) as { enrolment_token: string };
    expect((await enrol(next.enrolment_token, replacement.publicKey)).status, 'the present key').toBe(200);
    expect((await enrol(next.enrolment_token, third.publicKey)).status, 'which uses it up').toBe(401);

    expect((await renew(crypto.randomUUID())).status).toBe(404);
    expect((await renew(host_id, { authorization: 'Bearer wrong' })).status).toBe(401);
  });

  test('of several keys that are sent concurrently with the token one wins', async () => {
    const { enrolment_token } = await gateway.registerHost('race');
    const keys = await Promise.all(Array.from({ length: 8 }, makeHostKey));
    const responses = await Promise.all(keys.map(({ publicKey }) => enrol(enrolment_token, publicKey)));
    expect(responses.map(({ status }) => status).sort()).toEqual([200, ...Array(7).fill(401)]);
  });

  test('an unused token expires after an hour', async () => {
    const { host_id, enrolment_token } = await gateway.registerHost('late');
    await passTheHour(host_id);
    expect((await enrol(enrolment_token, (await makeHostKey()).publicKey)).status).toBe(401);
  });

  test('a made-up token', async () => {
    expect((await enrol('t'.repeat(43), (await makeHostKey()).publicKey)).status).toBe(401);
  });

  test('a private key, or a key of another type, is refused', async () => {
    const { enrolment_token } = await gateway.registerHost('kinds');
    const { publicKey } = await makeHostKey();
    for (const key of [
      { ...publicKey, d: publicKey.x },
      { ...publicKey, crv: 'X25519' },
      { kty: 'oct', k: 'a' },
      null,
    ]) {
      expect((await enrol(enrolment_token, key)).status).toBe(422);
    }
  });
});

describe('GET /agent/v1/link', () => {
  test.each<[string, string, number]>([
    ['no host', '', 422],
    ['no UUID', '?host_id=a', 422],
    ['a parameter too many', `?host_id=${crypto.randomUUID()}&key=a`, 422],
    ['an unknown host', `?host_id=${crypto.randomUUID()}`, 401],
  ])('%s', async (_name, query, status) => {
    const response = await gateway.upgrade(`/agent/v1/link${query}`);
    expect(response).toBe(status);
  });

  test('a host that is not enrolled yet, and no object is created for it', async () => {
    const { host_id } = await gateway.registerHost('not-yet');
    expect(await gateway.upgrade(`/agent/v1/link?host_id=${host_id}`)).toBe(401);
    expect(await gateway.objects()).toEqual([]);
  });

  test('no upgrade', async () => {
    expect((await fetch(`${gateway.url}/agent/v1/link?host_id=${crypto.randomUUID()}`)).status).toBe(426);
  });
});
