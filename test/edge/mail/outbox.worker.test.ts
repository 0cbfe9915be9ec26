import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { type MailServer, startMailServer } from '../../support/mail-server.ts';
import { type MonitorGateway, startMonitorGateway } from '../../support/monitor-gateway.ts';

const MAIL = { to: 'team@example.com', subject: 'S', text: 'T', html: '<p>T</p>' };
const NOW = Date.UTC(2026, 0, 5);
const HOUR = 3_600_000;

let stateDir: string;
let mails: MailServer;
let gateway: MonitorGateway;
let outbox: ReturnType<MonitorGateway['outbox']>;

beforeAll(async () => {
  stateDir = await mkdtemp(join(tmpdir(), 'branchgate-outbox-'));
  mails = await startMailServer();
  gateway = await startMonitorGateway({ stateDir, mailUrl: mails.url });
});
afterAll(async () => {
  await gateway?.stop();
  await mails?.stop();
  await rm(stateDir, { recursive: true });
});
beforeEach(() => {
  outbox = gateway.outbox(crypto.randomUUID());
  mails.posted.length = 0;
  mails.answersWith(200);
});

test('a mail that is taken waits no longer', async () => {
  expect(await outbox.put(MAIL, NOW)).toMatchObject({ waiting: 0 });
  expect(mails.posted.map(({ body }) => body)).toEqual([{ from: 'branchgate@example.com', ...MAIL }]);
  await outbox.send(NOW + HOUR);
  expect(mails.posted).toHaveLength(1);
});

test('one that is not is tried again, ever later, up to an hour; given up after three days', async () => {
  mails.answersWith(503);
  const pauses: number[] = [];
  let now = NOW;
  let state = await outbox.put(MAIL, now);
  while (state.waiting > 0 && pauses.length < 200) {
    const next = state.wokenAt ?? expect.unreachable('nothing would wake it');
    pauses.push((next - now) / 1000);
    // Woken too early, it waits for its time.
    if (next - 1 > now) expect(await outbox.send(next - 1)).toEqual({ waiting: 1, wokenAt: next });
    now = next;
    state = await outbox.send(now);
  }
  expect(pauses.slice(0, 12)).toEqual([2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600]);
  expect(Math.max(...pauses)).toBe(3600);
  expect(now - NOW).toBeGreaterThan(72 * HOUR);
  expect(now - NOW).toBeLessThan(74 * HOUR);
  const { length } = mails.posted;
  expect(length).toBe(pauses.length + 1);
  expect(new Set(mails.posted.map(({ headers }) => headers['idempotency-key'])).size).toBe(1);
});

test('of many that wait the newest hundred are kept, and all of them are sent', async () => {
  mails.answersWith(500);
  for (let n = 0; n < 103; n++) await outbox.put({ ...MAIL, subject: String(n) }, NOW);
  mails.posted.length = 0;
  mails.answersWith(200);
  expect(await outbox.send(NOW + HOUR)).toMatchObject({ waiting: 0 });
  expect(mails.posted.map(({ body }) => Number(body.subject)).sort((a, b) => a - b)).toEqual(
    Array.from({ length: 100 }, (_, n) => n + 3),
  );
});
