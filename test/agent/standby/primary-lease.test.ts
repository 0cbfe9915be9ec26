import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir, uptime } from 'node:os';
import { join } from 'node:path';
import { decodeJwt, exportJWK } from 'jose';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { type HostIdentity, readIdentity, writeIdentity } from '../../../agent/link/identity.ts';
import type { AgentSettings } from '../../../agent/process/settings.ts';
import { hindranceToOpen } from '../../../agent/standby/gate.ts';
import {
  askMember,
  guardLease,
  isGuarded,
  leaseLeft,
  storeLease,
} from '../../../agent/standby/primary-lease.ts';
import { NEW_MEMBER, readMember, type StoredMember } from '../../../agent/standby/stored-member.ts';
import type { HostMember } from '../../../shared/protocol/standby.ts';
import { eventually } from '../../support/eventually.ts';
import { makeHostKey } from '../../support/host/host-key.ts';

let settings: AgentSettings;

function member(change: Partial<StoredMember> = {}): void {
  const stored = {
    ...NEW_MEMBER,
    role: 'primary',
    generation: 1,
    closing: false,
    standby_id: null,
    lease_seconds: 60,
    ...change,
  };
  writeFileSync(join(settings.STATE_DIR, 'member.json'), JSON.stringify(stored));
}

/** What the gateway says, and the claims of the requests that came. */
let reply: Record<string, unknown>;
let asked: Record<string, unknown>[];
const gateway = createServer(async (request, response) => {
  const text = (await request.toArray()).join('');
  asked.push(decodeJwt(JSON.parse(text).token));
  response.setHeader('content-type', 'application/json').end(JSON.stringify(reply));
});
beforeAll(async () => {
  gateway.listen(0, '127.0.0.1');
  await once(gateway, 'listening');
});
afterAll(() => gateway.close());

const RECORD: HostMember = {
  role: 'primary',
  generation: 1,
  closing: false,
  lease_seconds: 60,
  standby_id: crypto.randomUUID(),
};

beforeEach(async () => {
  const STATE_DIR = mkdtempSync(join(tmpdir(), 'branchgate-lease-'));
  const GATEWAY_URL = `http://127.0.0.1:${(gateway.address() as AddressInfo).port}`;
  settings = { STATE_DIR, PGDATA_DIR: STATE_DIR, GATEWAY_URL } as AgentSettings;
  reply = { ...RECORD, is_renewed: true };
  asked = [];
  const { privateKey } = await makeHostKey();
  const private_key = (await exportJWK(privateKey)) as never;
  await writeIdentity(STATE_DIR, { host_id: crypto.randomUUID(), private_key });
});
const ask = async () => askMember(settings, (await readIdentity(settings.STATE_DIR)) as HostIdentity);
afterEach(() => rmSync(settings.STATE_DIR, { recursive: true }));

test('a host serves until the end of its lease, if it needs one', async () => {
  expect(leaseLeft(settings)).toBe(Number.POSITIVE_INFINITY);
  member();
  // Without a lease it has none.
  expect(leaseLeft(settings)).toBeLessThan(0);
  await storeLease(settings, uptime() + 30);
  expect(leaseLeft(settings)).toBeGreaterThan(25);
  expect(leaseLeft(settings)).toBeLessThanOrEqual(30);
  await storeLease(settings, null);
  expect(leaseLeft(settings)).toBe(Number.POSITIVE_INFINITY);
  await storeLease(settings, uptime() - 1);
  expect(leaseLeft(settings)).toBeLessThan(0);
  for (const change of [{ lease_seconds: null }, { role: 'standby' as const }]) {
    member(change);
    expect(leaseLeft(settings)).toBe(Number.POSITIVE_INFINITY);
  }
});

test('a lease ends with the boot in which it was given, and a damaged one is none', async () => {
  member();
  await storeLease(settings, uptime() + 30);
  const file = join(settings.STATE_DIR, 'lease.json');
  const lease = JSON.parse(readFileSync(file, 'utf8'));
  writeFileSync(file, JSON.stringify({ ...lease, boot: crypto.randomUUID() }));
  expect(leaseLeft(settings)).toBeLessThan(0);
  writeFileSync(file, '{');
  expect(leaseLeft(settings)).toBeLessThan(0);
});

/** What the lock file of a running server names; a process of that name takes its place. */
function startPostmaster() {
  const postmaster = spawn('sleep', ['600'], { argv0: 'postgres' });
  writeFileSync(join(settings.PGDATA_DIR, 'postmaster.pid'), `${postmaster.pid}\n`);
  return postmaster;
}

test('no server opens by a lease while no process would end it, nor asks for one', async () => {
  member(RECORD);
  const gate = () => hindranceToOpen(settings, { wait: false, say: () => {} });
  expect(await gate()).toMatch('agent of this host does not run');
  expect(asked).toEqual([]);
  const guard = guardLease(settings);
  await eventually(async () => expect(isGuarded(settings)).toBe(true));
  expect(await gate()).toBe(null);
  expect(asked).toMatchObject([{ renew: true, lease_seconds: 60 }]);
  expect(leaseLeft(settings)).toBeGreaterThan(50);
  member({ lease_seconds: null });
  await guard;
});

test('a host that hears that it is fenced has no lease any more, and its guard ends with PostgreSQL', async () => {
  member(RECORD);
  await storeLease(settings, uptime() + 60);
  reply = { ...RECORD, role: 'fenced', generation: 2, lease_seconds: null, is_renewed: false };
  const postmaster = startPostmaster();
  const ended = once(postmaster, 'exit');
  await guardLease(settings);
  expect((await ended)[1]).toBe('SIGQUIT');
  expect(readMember(settings)).toMatchObject({ role: 'fenced', generation: 2 });
  expect(leaseLeft(settings)).toBe(0);
});

test('a host that cannot store a lease asks for none', async () => {
  member(RECORD);
  mkdirSync(join(settings.STATE_DIR, 'lease.json'));
  reply = { ...RECORD, is_renewed: false };
  await ask();
  expect(asked).toMatchObject([{ renew: false }]);
});

test('a gateway may say more or less than this release knows', async () => {
  member(RECORD);
  reply = { ...RECORD, something: 'new' };
  expect(await ask()).toMatchObject({ role: 'primary', is_renewed: false });
});

test('a file that another process is replacing is replaced nevertheless', async () => {
  mkdirSync(join(settings.STATE_DIR, 'lease.json.new'));
  member(RECORD);
  await storeLease(settings, uptime() + 30);
  expect(leaseLeft(settings)).toBeGreaterThan(25);
});
