import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { type MonitorGateway, startMonitorGateway } from '../../support/worker/monitor-gateway.ts';

const MAIL = { to: 'team@example.com', subject: 'S', text: 'T', html: '<p>T</p>' };
const NOW = Date.UTC(2026, 0, 5);
const HOUR = 3_600_000;

let gateway: MonitorGateway;
let outbox: ReturnType<MonitorGateway['outbox']>;

beforeAll(async () => {
  gateway = await startMonitorGateway();
});
afterAll(() => gateway?.stop());
beforeEach(() => {
  outbox = gateway.outbox(crypto.randomUUID());
  gateway.mails.posted.length = 0;
  gateway.mails.answersWith(200);
});

test('an accepted mail leaves the outbox', async () => {
  expect(await outbox.put(MAIL, NOW)).toMatchObject({ waiting: 0 });
  expect(gateway.mails.posted.map(({ body }) => body)).toEqual([{ from: 'branchgate@example.com', ...MAIL }]);
  await outbox.send(NOW + HOUR);
  expect(gateway.mails.posted).toHaveLength(1);
});

test('a mail that is not accepted is retried with backoff of up to an hour, and abandoned after three days', async () => {
  gateway.mails.answersWith(503);
  const pauses: number[] = [];
  let now = NOW;
  let state = await outbox.put(MAIL, now);
  while (state.waiting > 0 && pauses.length < 200) {
    const next = state.wokenAt ?? expect.unreachable('nothing would wake it');
    pauses.push((next - now) / 1000);
    // An early alarm sends nothing.
    if (next - 1 > now) expect(await outbox.send(next - 1)).toEqual({ waiting: 1, wokenAt: next });
    now = next;
    state = await outbox.send(now);
  }
  expect(pauses.slice(0, 12)).toEqual([2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600]);
  expect(Math.max(...pauses)).toBe(3600);
  expect(now - NOW).toBeGreaterThan(72 * HOUR);
  expect(now - NOW).toBeLessThan(74 * HOUR);
  const { length } = gateway.mails.posted;
  expect(length).toBe(pauses.length + 1);
  expect(new Set(gateway.mails.posted.map(({ headers }) => headers['idempotency-key'])).size).toBe(1);
});

test.each([400, 413, 422])('a mail rejected with %i is abandoned immediately', async (status) => {
  gateway.mails.answersWith(status);
  expect(await outbox.put(MAIL, NOW)).toMatchObject({ waiting: 0 });
  expect(gateway.mails.posted).toHaveLength(1);
});

test('a redirect does not count as accepted', async () => {
  gateway.mails.answersWith(302);
  expect(await outbox.put(MAIL, NOW)).toMatchObject({ waiting: 1 });
});

test('a mail is not sent again while a slow attempt is in progress', async () => {
  const answer = gateway.mails.holdsNext();
  const put = outbox.put(MAIL, NOW);
  await eventually(async () => expect(gateway.mails.posted).toHaveLength(1));
  await outbox.send(NOW + 5_000);
  answer();
  expect(await put).toMatchObject({ waiting: 0 });
  expect(gateway.mails.posted).toHaveLength(1);
});

test('the outbox stores the newest hundred mails, and all of them are sent', async () => {
  gateway.mails.answersWith(500);
  for (let n = 0; n < 103; n++) await outbox.put({ ...MAIL, subject: String(n) }, NOW);
  gateway.mails.posted.length = 0;
  gateway.mails.answersWith(200);
  expect(await outbox.send(NOW + HOUR)).toMatchObject({ waiting: 0 });
  expect(gateway.mails.posted.map(({ body }) => Number(body.subject)).sort((a, b) => a - b)).toEqual(
    Array.from({ length: 100 }, (_, n) => n + 3),
  );
});

test('mails about one occasion are sent once', async () => {
  const coordinator = gateway.coordinator(crypto.randomUUID());
  const subjects = () => gateway.mails.posted.map(({ body }) => body.subject).sort();
  for (const occasion of ['first', 'first', 'second', 'second'])
    await coordinator.sendMails([{ ...MAIL, subject: occasion }], occasion);
  await coordinator.sendMails([{ ...MAIL, subject: 'none' }]);
  await eventually(async () => expect(subjects()).toEqual(['first', 'none', 'second']));
});
