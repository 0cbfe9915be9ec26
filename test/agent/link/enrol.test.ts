import { mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { EnrolmentError, enrol } from '../../../agent/link/enrol.ts';
import { readIdentity } from '../../../agent/link/identity.ts';

const token = 't'.repeat(43);
const hostId = 'a4b5e2a4-3a8f-4f3e-9d6c-0a1b2c3d4e5f';

let gateway: Server;
let gatewayUrl: string;
let stateDir: string;
/** The gateway's next reply; null: it closes the connection, and the reply is lost. */
let reply: { status: number; body: unknown } | null;
let enrolledKeys: string[];

beforeEach(async () => {
  stateDir = await mkdtemp(join(tmpdir(), 'branchgate-enrol-'));
  reply = { status: 200, body: { host_id: hostId } };
  enrolledKeys = [];
  gateway = createServer(async (request, response) => {
    const body = JSON.parse(Buffer.concat(await request.toArray()).toString());
    expect(Object.keys(body.public_key)).toEqual(['kty', 'crv', 'x']);
    enrolledKeys.push(body.public_key.x);
    if (reply === null) request.socket.destroy();
    else response.writeHead(reply.status).end(JSON.stringify(reply.body));
  });
  await new Promise<void>((resolve) => gateway.listen(0, '127.0.0.1', resolve));
  gatewayUrl = `http://127.0.0.1:${(gateway.address() as AddressInfo).port}`;
});

afterEach(async () => {
  gateway.closeAllConnections();
  await new Promise((resolve) => gateway.close(resolve));
  await rm(stateDir, { recursive: true });
});

test('the key is created here, stored for its owner only, and read again', async () => {
  const identity = await enrol({ gatewayUrl, stateDir, token });
  expect(identity.host_id).toBe(hostId);
  expect(await readdir(stateDir)).toEqual(['host.json']);
  expect((await stat(join(stateDir, 'host.json'))).mode & 0o777).toBe(0o600);
  expect(await readIdentity(stateDir)).toEqual(identity);
  expect(enrolledKeys).toEqual([identity.private_key.x]);
});

test('after a lost reply the same key enrols again', async () => {
  reply = null;
  await expect(enrol({ gatewayUrl, stateDir, token })).rejects.toThrow(EnrolmentError);
  expect(await readIdentity(stateDir)).toBeNull();
  reply = { status: 200, body: { host_id: hostId } };
  await enrol({ gatewayUrl, stateDir, token });
  expect(enrolledKeys[1]).toBe(enrolledKeys[0]);
});

test('an enrolled host is not changed', async () => {
  const identity = await enrol({ gatewayUrl, stateDir, token });
  await expect(enrol({ gatewayUrl, stateDir, token })).rejects.toThrow(hostId);
  expect(await readIdentity(stateDir)).toEqual(identity);
  expect(enrolledKeys).toHaveLength(1);
});

test('force replaces the identity only after the gateway accepted the new key', async () => {
  const before = await enrol({ gatewayUrl, stateDir, token });
  reply = { status: 401, body: {} };
  await expect(enrol({ gatewayUrl, stateDir, token, force: true })).rejects.toThrow('token');
  expect(await readIdentity(stateDir)).toEqual(before);
  reply = { status: 200, body: { host_id: hostId } };
  const after = await enrol({ gatewayUrl, stateDir, token, force: true });
  expect(after.private_key.x).not.toBe(before.private_key.x);
});

test.each([
  [401, {}, 'invalid, already used by another key, or expired'],
  [503, {}, 'status 503'],
  [200, { host_id: 'x' }, 'not a branchgate gateway'],
  [200, { host_id: hostId, more: 1 }, 'not a branchgate gateway'],
])('the gateway responds %i %j', async (status, body, message) => {
  reply = { status, body };
  const failure = await enrol({ gatewayUrl, stateDir, token }).catch((error: Error) => error);
  expect(failure).toBeInstanceOf(EnrolmentError);
  expect((failure as Error).message).toContain(message);
  expect((failure as Error).message).not.toContain(token);
});

test('a damaged identity is reported without its content', async () => {
  await writeFile(join(stateDir, 'host.json'), '{"private_key": s3cret');
  const failure = await readIdentity(stateDir).catch((error: Error) => error);
  expect(String(failure)).toContain('host.json is damaged');
  expect(String(failure)).not.toContain('s3cret');
  await expect(enrol({ gatewayUrl, stateDir, token })).rejects.toThrow('damaged');
  await enrol({ gatewayUrl, stateDir, token, force: true });
  expect(await readFile(join(stateDir, 'host.json'), 'utf8')).toContain(hostId);
});
