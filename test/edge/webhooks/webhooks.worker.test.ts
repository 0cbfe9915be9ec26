import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { EVENT_TYPES, type EventType } from '../../../edge/database/column-types.ts';
import { WEBHOOKS_MAX } from '../../../edge/webhooks/webhook.ts';
import { Api } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { startTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';
import { startReceiver } from '../../support/worker/webhook-receiver.ts';

const folder = mkdtempSync(join(tmpdir(), 'branchgate-webhooks-'));
let gateway: TripsGateway;
let project: string;

beforeAll(async () => {
  gateway = await startTripsGateway(0, {}, { folder });
  project = (await gateway.api.project('Webhooks')).id;
});
afterAll(async () => {
  await gateway?.stop();
  rmSync(folder, { recursive: true });
});

interface Created {
  id: string;
  secret: string;
  disabled_at: string | null;
}

interface Delivery {
  id: string;
  status: string;
  attempts: number;
  response_status: number | null;
  error: string | null;
  event: { type: string };
}

/** A webhook with its endpoint, until the end of the test. */
async function webhook(events: readonly EventType[], project_id: string | null = project) {
  const receiver = await startReceiver();
  const { status, body } = await gateway.api.post<Created>('/api/v1/webhooks', {
    url: receiver.url,
    events,
    project_id,
  });
  expect(status).toBe(201);
  receiver.verifyWith(body.secret);
  const path = `/api/v1/webhooks/${body.id}`;
  onTestFinished(async () => {
    await gateway.api.delete(path);
    await receiver.stop();
  });
  const deliveries = async () =>
    (await gateway.api.get<{ webhook_deliveries: Delivery[] }>(`${path}/deliveries`)).body.webhook_deliveries;
  return { ...body, receiver, path, deliveries };
}

const rules = (receiver: Awaited<ReturnType<typeof startReceiver>>) =>
  receiver.received.map(({ event }) => event.data.status);

test('every event of the wanted types is delivered once, and signed', async () => {
  const { receiver, deliveries } = await webhook(['branch.changed', 'network_rule.changed']);
  const all = await webhook(EVENT_TYPES, null);
  const { id } = await gateway.api.branch(project, 'delivered');
  await eventually(async () => expect(receiver.received).toHaveLength(4));
  await eventually(async () =>
    expect(all.receiver.received.map(({ event }) => event.data.status)).toContain('succeeded'),
  );
  expect(receiver.invalid).toEqual([]);
  const received = receiver.received.map(({ event: { type, data } }) => `${type} ${data.status}`);
  expect(received.sort()).toEqual([
    'branch.changed active',
    'branch.changed creating',
    'network_rule.changed applied',
    'network_rule.changed pending',
  ]);
  for (const { id: deliveryId, event } of receiver.received) {
    expect(event).toMatchObject({ id: deliveryId, project_id: project, timestamp: expect.any(String) });
    expect(event.data.branch_id).toBe(id);
  }
  // An attempt is recorded after its response.
  await eventually(async () =>
    expect((await deliveries()).map(({ status, attempts }) => [status, attempts])).toEqual(
      Array(4).fill(['delivered', 1]),
    ),
  );
});

test.runIf(IS_NIGHTLY)('a failed delivery is repeated with the same id and a new timestamp', async () => {
  const { receiver, deliveries } = await webhook(['network_rule.changed']);
  receiver.respondWith(500);
  const { id } = await gateway.api.allow(project, '192.0.2.1/32');
  await eventually(async () =>
    expect(await deliveries()).toMatchObject(
      Array(2).fill({ status: 'pending', response_status: 500, error: 'status' }),
    ),
  );
  receiver.respondWith(204);
  await eventually(async () =>
    expect(await deliveries()).toMatchObject(
      Array(2).fill({ status: 'delivered', response_status: 204, error: null }),
    ),
  );
  expect(receiver.invalid).toEqual([]);
  expect(new Set(rules(receiver))).toEqual(new Set(['pending', 'applied']));
  for (const { id: deliveryId, attempts } of await deliveries()) {
    const received = receiver.received.filter((delivery) => delivery.id === deliveryId);
    expect(attempts).toBeGreaterThan(1);
    expect(received).toHaveLength(attempts);
    const times = received.map(({ timestamp }) => timestamp);
    expect(times).toEqual([...new Set(times)].sort((one, other) => one - other));
    for (const { event } of received) expect(event.data.network_rule_id).toBe(id);
  }
});

test.runIf(IS_NIGHTLY)(
  'a killed gateway loses no event: one that is only recorded, one that waits, one that is being delivered',
  async () => {
    const recorded = await webhook(['branch.changed']);
    const waiting = await webhook(['network_rule.changed']);
    const underway = await webhook(['network_rule.changed']);
    const { id } = await gateway.api.branch(project, 'killed');
    await eventually(async () => expect(recorded.receiver.received).toHaveLength(2));
    waiting.receiver.respondWith(503);
    underway.receiver.hang();
    const before = [waiting, underway].map(({ receiver }) => receiver.received.length);
    await gateway.api.allow(project, '192.0.2.2/32');
    await eventually(async () => {
      expect(waiting.receiver.received.length).toBeGreaterThanOrEqual((before[0] ?? 0) + 2);
      expect(underway.receiver.received.length).toBeGreaterThanOrEqual((before[1] ?? 0) + 2);
    });
    await gateway.inD1("update project_branches set status = 'failed' where id = ?", id);
    await gateway.restart();
    for (const { receiver } of [waiting, underway]) {
      receiver.received.length = 0;
      receiver.respondWith(200);
    }
    await gateway.coordinatorOf(project).wake();
    await eventually(async () => expect(rules(recorded.receiver)).toEqual(['creating', 'active', 'failed']));
    for (const { receiver } of [waiting, underway]) {
      await eventually(async () =>
        expect(rules(receiver).sort()).toEqual(expect.arrayContaining(['applied', 'pending'])),
      );
      expect(receiver.invalid).toEqual([]);
    }
  },
);

test('the test call reports the result, and is not repeated', async () => {
  const { id, path, receiver, deliveries } = await webhook(['storage.changed']);
  const call = () => gateway.api.post<Delivery>(`${path}/test`, undefined);
  expect(await call()).toMatchObject({
    status: 200,
    body: {
      status: 'delivered',
      response_status: 200,
      event: { type: 'webhook.test', data: { webhook_id: id } },
    },
  });
  // A redirect is a failure, and nothing follows it.
  receiver.respondWith(302, { location: receiver.url });
  expect((await call()).body).toMatchObject({ status: 'failed', response_status: 302, error: 'status' });
  expect(receiver.received).toHaveLength(2);
  await receiver.stop();
  expect((await call()).body).toMatchObject({
    status: 'failed',
    response_status: null,
    error: 'connection_failed',
  });
  const log = await deliveries();
  expect(log.map(({ status, attempts }) => [status, attempts])).toEqual([
    ['failed', 1],
    ['failed', 1],
    ['delivered', 1],
  ]);
});

test('an address is checked again before each attempt', async () => {
  const { id, path, receiver } = await webhook(['storage.changed']);
  for (const url of ['http://10.0.0.1/', 'https://169.254.169.254/', 'http://ci.example.com/']) {
    await gateway.inD1('update webhooks set url = ? where id = ?', url, id);
    const { body } = await gateway.api.post<Delivery>(`${path}/test`, undefined);
    expect(body).toMatchObject({ status: 'failed', response_status: null, error: 'url_refused' });
  }
  await gateway.inD1('update webhooks set url = ? where id = ?', receiver.url, id);
  expect((await gateway.api.post<Delivery>(`${path}/test`, undefined)).body.status).toBe('delivered');
  expect(receiver.received).toHaveLength(1);
});

test('a webhook gets no event of another tenant, nor of a project that has moved to it', async () => {
  const { receiver, path } = await webhook(['branch.changed'], null);
  const other = new Api(gateway.url, await gateway.tokenOf({ gid: 'other', tenant: 'other' }));
  const { id: theirs } = await other.project('Theirs');
  await other.branch(theirs, 'hidden');
  const { id: moved } = await gateway.api.project('Moved');
  const { id: branch } = await gateway.api.branch(moved, 'shown');
  await eventually(async () => expect(receiver.received).toHaveLength(4));
  for (const [table, column] of [
    ['projects', 'id'],
    ['project_branches', 'project_id'],
  ])
    await gateway.inD1(`update ${table} set tenant_id = 'other' where ${column} = ?`, moved);
  await gateway.inD1("update project_branches set status = 'failed' where id = ?", branch);
  await gateway.coordinatorOf(moved).wake();
  await eventually(async () => expect(await gateway.inD1('select * from event_outbox')).toEqual([]));
  expect((await other.get(`${path}/deliveries`)).status).toBe(404);
  expect(new Set(receiver.received.map(({ event }) => event.project_id))).toEqual(new Set([moved]));
  // `main` and the branch: created and active.
  expect(rules(receiver).sort()).toEqual(['active', 'active', 'creating', 'creating']);
});

test('a webhook is disabled after three days of failures, and reports it', async () => {
  const { id, receiver, deliveries } = await webhook(['network_rule.changed']);
  receiver.respondWith(500);
  await gateway.api.allow(project, '192.0.2.3/32');
  await eventually(async () => expect(receiver.received).toHaveLength(2));
  const DAY = 24 * 3_600_000;
  const read = async () => {
    const { body } = await gateway.api.get<{ webhooks: Created[] }>('/api/v1/webhooks?limit=100');
    return body.webhooks.find((one) => one.id === id);
  };
  await gateway.ageWebhook(id, 2.9 * DAY);
  expect((await read())?.disabled_at).toBeNull();
  await gateway.ageWebhook(id, 0.2 * DAY);
  expect((await read())?.disabled_at).not.toBeNull();
  expect((await deliveries()).map(({ status }) => status)).toEqual(['failed', 'failed']);
  const attempts = receiver.received.length;
  await gateway.api.allow(project, '192.0.2.4/32');
  await eventually(async () => expect(await gateway.inD1('select * from event_outbox')).toEqual([]));
  expect(receiver.received).toHaveLength(attempts);
  const { body } = await gateway.api.get<{ audit_events: { metadata: unknown; actor_id: string | null }[] }>(
    '/api/v1/audit-events?name=webhook.disabled',
  );
  expect(body.audit_events).toMatchObject([{ actor_id: null, metadata: { webhook_id: id } }]);
});

test('the secret is shown once and stored sealed, and both ends of the life are audited', async () => {
  const { id, secret, path } = await webhook(['branch.changed']);
  const [row] = (await gateway.inD1('select * from webhooks where id = ?', id)) as Record<string, string>[];
  expect(secret).toMatch(/^whsec_[\w+/]{43}=$/);
  expect(JSON.stringify(row)).not.toContain(secret.slice(6, 20));
  expect((await gateway.api.get('/api/v1/webhooks')).body).not.toHaveProperty('webhooks.0.secret');
  expect((await gateway.api.delete(path)).status).toBe(204);
  for (const call of [
    gateway.api.delete(path),
    gateway.api.get(`${path}/deliveries`),
    gateway.api.post(`${path}/test`, undefined),
  ]) {
    expect((await call).status).toBe(404);
  }
  for (const name of ['webhook.created', 'webhook.deleted']) {
    const { body } = await gateway.api.get<{ audit_events: unknown[] }>(`/api/v1/audit-events?name=${name}`);
    expect(body.audit_events[0]).toMatchObject({
      name,
      project_id: project,
      metadata: { webhook_id: id, events: ['branch.changed'] },
    });
  }
});

test('bad webhooks are refused, and a tenant has a limited number', async () => {
  const create = (more: object) =>
    gateway.api.post('/api/v1/webhooks', {
      url: 'http://127.0.0.1:9/',
      events: ['storage.changed'],
      ...more,
    });
  for (const url of ['https://10.0.0.1/', 'http://ci.example.com/', 'not a url']) {
    expect(await create({ url })).toMatchObject({ status: 422, body: { details: [{ path: 'url' }] } });
  }
  expect((await create({ events: [] })).status).toBe(422);
  expect((await create({ events: ['webhook.test'] })).status).toBe(422);
  expect((await create({ project_id: crypto.randomUUID() })).status).toBe(404);
  const answers = await Promise.all(Array.from({ length: WEBHOOKS_MAX + 2 }, () => create({})));
  const refused = answers.filter(({ status }) => status !== 201);
  expect(refused).toHaveLength(2);
  expect(refused[0]).toMatchObject({
    status: 429,
    body: { error: 'WEBHOOK_LIMIT_REACHED', limit: WEBHOOKS_MAX },
  });
});
