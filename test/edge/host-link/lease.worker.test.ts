import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { enrol } from '../../../agent/link/enrol.ts';
import { signedRequest } from '../../../agent/link/host-certificate.ts';
import type { HostIdentity } from '../../../agent/link/identity.ts';
import { MEMBER_PATH, MEMBER_TYPE, MemberReply } from '../../../shared/protocol/standby.ts';
import { type LinkGateway, startLinkGateway } from '../../support/worker/link-gateway.ts';

/** A standby takes the place of its primary after 60 s. */
const LASTS = 60_000;

let folder: string;
let gateway: LinkGateway;
let identity: HostIdentity;
let primaryId: string;
let standbyId: string;

const write = (sql: string, ...values: unknown[]) =>
  gateway.database
    .prepare(sql)
    .bind(...values)
    .run();

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'branchgate-leases-'));
  gateway = await startLinkGateway({ stateDir: folder, bindings: { AUTO_PROMOTE_SECONDS: '60' } });
});
afterAll(async () => {
  await gateway.stop();
  await rm(folder, { recursive: true });
});

/** A primary with a standby that has a copy and is away. */
beforeEach(async () => {
  const name = `db-${crypto.randomUUID().slice(0, 8)}`;
  const { enrolment_token: token } = await gateway.registerHost(name);
  identity = await enrol({ gatewayUrl: gateway.url, stateDir: join(folder, name), token });
  primaryId = identity.host_id;
  standbyId = (await gateway.registerHost(`${name}-b`)).host_id;
  await write('update hosts set generation = 3 where id in (?, ?)', primaryId, standbyId);
  await write("update hosts set role = 'standby', standby_of = ? where id = ?", primaryId, standbyId);
});

/** @param lease_seconds by the record that the host has */
const ask = (lease_seconds: number | null = 40) =>
  signedRequest(
    gateway.url,
    identity,
    { path: MEMBER_PATH, typ: MEMBER_TYPE, claims: { renew: true, lease_seconds } },
    MemberReply,
  );
/** What is stored after an alarm, with the time until its end. */
const ring = async (change: Parameters<LinkGateway['lease']>[1] = {}) => {
  const { lease, alarmIn } = await gateway.lease(primaryId, { ...change, rings: true });
  return { lease, alarmIn, lapsesIn: lease && lease.lapsesAt - Date.now() };
};
const needNone = () => write('update hosts set generation = 0 where id = ?', standbyId);

test('a lease is counted for as long as the host has it, also after the setting was lowered', async () => {
  expect(await ask(600)).toMatchObject({ is_renewed: true, lease_seconds: 40 });
  const { lease } = await gateway.lease(primaryId);
  expect((lease?.lapsesAt ?? 0) - (lease?.renewedAt ?? 0)).toBe(900_000);
  await ask();
  const { lapsesIn, lease: after } = await ring();
  expect(after).toMatchObject({ state: 'running', lapsesAt: lease?.lapsesAt, lasts: LASTS });
  expect(lapsesIn).toBeGreaterThan(800_000);
});

test('a standby that cannot take the place is looked at again after a pause', async () => {
  await ask();
  const { lease, lapsesIn, alarmIn } = await ring({ change: { lapsesAt: Date.now() - 1 } });
  expect(lease?.state).toBe('running');
  for (const time of [lapsesIn, alarmIn]) {
    expect(time).toBeGreaterThan(2_000);
    expect(time).toBeLessThanOrEqual(5_000);
  }
});

test('a gateway that was away, or could not read its records, counts again from the start', async () => {
  await ask();
  const late = await ring({ change: { lapsesAt: Date.now() - 60_000 } });
  expect(late.lapsesIn).toBeGreaterThan(LASTS - 20_000);
  await write('alter table hosts rename column generation to away');
  const unread = await ring({ change: { lapsesAt: Date.now() - 1 } });
  await write('alter table hosts rename column away to generation');
  expect(unread.lease?.state).toBe('running');
  expect(unread.lapsesIn).toBeGreaterThan(LASTS - 20_000);
  expect(await ask()).toMatchObject({ is_renewed: true });
});

test('a decision in progress is not forgotten when no lease is needed any more', async () => {
  await ask();
  await gateway.lease(primaryId, { change: { state: 'ending' } });
  expect(await ask()).toMatchObject({ is_renewed: false });
  await needNone();
  await expect(ask()).rejects.toThrow();
  // A request that has read the record of before.
  await gateway.lease(primaryId, { change: { state: 'over', generation: 3 } });
  await expect(ask()).rejects.toThrow();
  expect((await gateway.lease(primaryId)).lease).toMatchObject({ state: 'over' });
  await gateway.lease(primaryId, { change: { generation: 2 } });
  expect(await ask()).toMatchObject({ role: 'primary', lease_seconds: null });
  expect((await gateway.lease(primaryId)).lease).toBe(null);
});

test('and is finished', async () => {
  await ask();
  await needNone();
  expect((await ring({ change: { state: 'ending' } })).lease).toBe(null);
  await write("update hosts set role = 'primary', standby_of = null, generation = 4 where id = ?", standbyId);
  await write(
    "update hosts set role = 'fenced', standby_of = ?, generation = 4 where id = ?",
    standbyId,
    primaryId,
  );
  const { lease } = await ring({ change: { state: 'ending', lapsesAt: 0, lasts: LASTS } });
  expect(lease).toMatchObject({ state: 'over', generation: 4 });
});
