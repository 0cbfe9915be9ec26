import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { EVENT_STREAMS_MAX } from '../../../edge/events/event-streams.ts';
import { TENANT_STREAMS_MAX } from '../../../edge/events/stream-admission.ts';
import { eventually } from '../../support/eventually.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';
import { openEvents } from '../../support/worker/event-client.ts';
import { openStreams } from '../../support/worker/open-streams.ts';
import { startTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';

const folder = mkdtempSync(join(tmpdir(), 'branchgate-events-'));
let gateway: TripsGateway;
let project: string;
/** The stream of a project that is deleted. */
let doomed: Awaited<ReturnType<typeof openEvents>>;
/** The streams of an API key that is deleted. */
let ofKey: Awaited<ReturnType<typeof openEvents>>[];

const METRICS = 'metrics/stream';
/** Both kinds of streams of a project. */
const PATHS = ['events', METRICS];

beforeAll(async () => {
  gateway = await startTripsGateway(0, {}, { folder });
  project = (await gateway.api.project('Events')).id;
});
afterAll(async () => {
  await gateway?.stop();
  rmSync(folder, { recursive: true });
});

const open = (lastEventId?: string, token = gateway.token, path?: string) =>
  openEvents({ url: gateway.url, token }, project, lastEventId, path === undefined ? {} : { path });

const setStatus = (status: string, branch: string) =>
  gateway.inD1('update project_branches set status = ? where id = ?', status, branch);

/** The id of the last event. */
async function newest(): Promise<string> {
  const stream = await open('999999');
  await eventually(async () => expect(stream.received[0]?.event).toBe('reset'));
  stream.cut();
  return stream.lastId();
}

/** Every event that is stored. */
async function stored() {
  const last = await newest();
  const replay = await open('0');
  await eventually(async () => expect(replay.lastId()).toBe(last));
  replay.cut();
  return replay.changes();
}

/** The positions follow each other. */
function expectNoGap({ received }: Awaited<ReturnType<typeof open>>) {
  const ids = received.map(({ id }) => Number(id));
  expect(ids).toEqual(ids.map((_, n) => (ids[0] ?? 0) + n));
}

test('a creation is reported step by step, once and in order', async () => {
  const stream = await open();
  await eventually(async () => expect(stream.received[0]).toMatchObject({ event: 'ready' }));
  const { id } = await gateway.api.branch(project, 'stepwise');
  await eventually(async () => expect(stream.statuses('branch.changed')).toEqual(['creating', 'active']));
  await eventually(async () =>
    expect(stream.statuses('network_rule.changed')).toEqual(['pending', 'applied']),
  );
  await eventually(async () => expect(stream.statuses('job.changed').at(-1)).toBe('succeeded'));
  expectNoGap(stream);
  for (const { event, data } of stream.changes())
    expect(data).toMatchObject({ type: event, project_id: project });
  const last = stream.received.findLast(({ event }) => event === 'job.changed')?.data.data;
  expect(last).toMatchObject({
    branch_id: id,
    steps: expect.arrayContaining([expect.objectContaining({ name: 'prove', status: 'succeeded' })]),
  });
});

test('a snapshot is reported when it is taken, independent and deleted', async () => {
  const stream = await open();
  await eventually(async () => expect(stream.received[0]).toMatchObject({ event: 'ready' }));
  const path = `/api/v1/projects/${project}`;
  const { body } = await gateway.api.post<{ id: string }>(`${path}/branches/main/snapshots`, {});
  await gateway.inD1('update snapshots set independent = 1 where id = ?', body.id);
  await gateway.api.call('DELETE', `${path}/snapshots/${body.id}`);
  await eventually(async () =>
    expect(stream.statuses('snapshot.changed')).toEqual(['ready', 'ready', 'deleted']),
  );
  expectNoGap(stream);
});

test('a block, its end and an expiry are reported', async () => {
  const { id } = await gateway.api.branch(project, 'blocked');
  const stream = await open();
  await eventually(async () => expect(stream.received).toHaveLength(1));
  const coordinator = gateway.coordinatorOf(project);
  const until = new Date(Date.now() + 60_000).toISOString();
  const observe = (seconds: number, blocks: { branch_id: string; reason: 'attempts'; until: string }[]) => {
    const observed_at = new Date(Date.now() + seconds * 1000).toISOString();
    return coordinator.recordBlocks({ project_id: project, observed_at, blocks });
  };
  const seen = () =>
    stream.changes().map(({ data: { data } }) => [data.status, data.connections_blocked_until]);
  await observe(0, [{ branch_id: id, reason: 'attempts', until }]);
  await eventually(async () => expect(seen()).toEqual([['active', until]]));
  await observe(1, []);
  await eventually(async () => expect(seen().at(-1)).toEqual(['active', null]));
  await gateway.inD1('update project_branches set expires_at = 1 where id = ?', id);
  await coordinator.wake();
  await eventually(async () => expect(seen().at(-1)).toEqual(['expired', null]));
});

test('a client that is cut off, also by a killed gateway, misses nothing and gets nothing twice', async () => {
  const first = await open();
  const { id } = await gateway.api.branch(project, 'resumed');
  await eventually(async () => expect(first.statuses('branch.changed')).toContain('creating'));
  first.cut();
  const seen = [...first.changes()];
  const rule = await gateway.api.allow(project, '192.0.2.1/32');
  await gateway.restart();
  await gateway.api.delete(`/api/v1/projects/${project}/network-rules/${rule.id}`);
  const second = await open(first.lastId());
  await eventually(async () =>
    expect(second.statuses('network_rule.changed').slice(-3)).toEqual(['pending', 'applied', 'deleted']),
  );
  await gateway.api.delete(`/api/v1/projects/${project}/branches/${id}`);
  const isDone = ({ data: { data } }: (typeof seen)[number]) =>
    data.kind === 'branch.delete' && data.status === 'succeeded';
  await eventually(async () => expect(second.changes().filter(isDone)).toHaveLength(1));
  const all = (await stored()).map((event) => event.id);
  const from = all.indexOf(seen[0]?.id ?? '');
  await eventually(async () =>
    expect([...seen, ...second.changes()].map((event) => event.id)).toEqual(all.slice(from)),
  );
  expect(new Set(all).size).toBe(all.length);
});

test('a change that nobody reported is found, and reported once although it stays in the outbox', async () => {
  const { id } = await gateway.api.branch(project, 'kept');
  const stream = await open();
  await eventually(async () => expect(stream.received).toHaveLength(1));
  await gateway.inD1(
    "create trigger keep before delete on event_outbox begin select raise(abort, 'kept by the test'); end",
  );
  try {
    await setStatus('failed', id);
    await eventually(async () => expect(stream.statuses('branch.changed')).toEqual(['failed']));
  } finally {
    await gateway.inD1('drop trigger keep');
  }
  // The coordinator tries again.
  await eventually(async () => expect(await gateway.inD1('select * from event_outbox')).toEqual([]));
  await gateway.api.allow(project, '192.0.2.3/32');
  await eventually(async () =>
    expect(stream.statuses('network_rule.changed')).toEqual(['pending', 'applied']),
  );
  expect(stream.statuses('branch.changed')).toEqual(['failed']);
  // What was moved again took no position.
  expectNoGap(stream);
});

describe('Last-Event-ID', () => {
  test.each(firstByDay(1, ['999999', '-1', 'x']))(
    '%s is no position in the log: reset',
    async (lastEventId) => {
      const stream = await open(lastEventId);
      await eventually(async () => expect(stream.received.map(({ event }) => event)).toEqual(['reset']));
      expect(stream.lastId()).toBe((await stored()).at(-1)?.id);
    },
  );

  test('of the last event continues without an event', async () => {
    const stream = await open(await newest());
    const { id } = await gateway.api.allow(project, '192.0.2.2/32');
    await eventually(async () => expect(stream.received[0]?.data.data.network_rule_id).toBe(id));
  });
});

test('a deleted project has a last event', async () => {
  const { id } = await gateway.api.project('Doomed');
  doomed = await openEvents(gateway, id, undefined, { outlivesTest: true });
  await gateway.inD1('delete from projects where id = ?', id);
  await eventually(async () => expect(doomed.statuses('project.changed')).toEqual(['deleted']));
});

test('an API key has streams', async () => {
  const wanted = { name: 'CI', role: 'viewer', scopes: ['read'], project_id: project, expires_in_days: 1 };
  const { body } = await gateway.api.post<{ id: string; key: string }>('/api/v1/api-keys', wanted);
  const client = { url: gateway.url, token: body.key };
  ofKey = await Promise.all(
    PATHS.map((path) => openEvents(client, project, undefined, { outlivesTest: true, path })),
  );
  await eventually(async () => expect(ofKey[0]?.received[0]).toMatchObject({ event: 'ready' }));
  expect((await gateway.api.delete(`/api/v1/api-keys/${body.id}`)).status).toBe(204);
});

const isOver = ({ hasEnded }: { hasEnded: () => boolean }) => hasEnded();

describe('a stream ends', () => {
  test.each(firstByDay(1, PATHS))('of %s when the token expires', async (path) => {
    const stream = await open(undefined, await gateway.tokenOf({ seconds: 5 }), path);
    expect(stream.response.status).toBe(200);
    await eventually(async () => expect(stream.hasEnded()).toBe(true));
  });

  test('when the user loses access, and gets no event of another tenant until then', async () => {
    const token = await gateway.tokenOf({ gid: 'user-2', role: 'admin' });
    const stream = await open(undefined, token);
    const measurements = await open(undefined, token, METRICS);
    const { id } = await gateway.api.branch(project, 'private');
    await eventually(async () => expect(stream.statuses('branch.changed')).toContain('active'));
    const before = stream.received.length;
    await gateway.inD1("update project_branches set tenant_id = 'other' where id = ?", id);
    await setStatus('failed', id);
    const owner = await open('0');
    await eventually(async () => expect(await gateway.inD1('select * from event_outbox')).toEqual([]));
    expect(owner.received.length).toBeGreaterThan(0);
    // A newer token of the user has a role that sees own projects only.
    const newer = await gateway.tokenOf({ gid: 'user-2', role: 'viewer' });
    expect((await open(undefined, newer)).response.status).toBe(404);
    await eventually(async () => expect([stream, measurements].map(isOver)).toEqual([true, true]));
    expect(stream.received).toHaveLength(before);
  });
});

describe('open streams are limited', () => {
  const refusal = async (response: Response) => ({ status: response.status, body: await response.json() });

  test.runIf(IS_NIGHTLY)('per project', async () => {
    const streams = await openStreams(EVENT_STREAMS_MAX, () => open());
    const { response } = await open();
    expect(response.status).toBe(429);
    streams[0]?.cut();
    expect((await open()).response.status).toBe(200);
  });

  test.each(
    firstByDay(1, [
      ['events', 'events.read'],
      [METRICS, 'metrics.read'],
    ] as const),
  )('of %s per tenant', async (path, action) => {
    const token = await gateway.tokenOf({ gid: 'user-3', tenant: 'busy' });
    const created = await fetch(`${gateway.url}/api/v1/projects`, {
      method: 'POST',
      headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
      body: JSON.stringify({ name: `Busy ${action}` }),
    });
    const { id } = (await created.json()) as { id: string };
    const holders = Array.from({ length: TENANT_STREAMS_MAX }, (_, n) => `holder ${n}`);
    expect(await gateway.holdStreams('busy', action, holders, TENANT_STREAMS_MAX)).not.toContain(false);
    const response = await fetch(`${gateway.url}/api/v1/projects/${id}/${path}`, {
      headers: { Authorization: `Bearer ${token}` },
    });
    expect(await refusal(response)).toMatchObject({
      status: 429,
      body: { error: 'STREAM_LIMIT_REACHED', limit: TENANT_STREAMS_MAX },
    });
  });
});

test.runIf(IS_NIGHTLY)('a deleted project and a deleted key have no streams after that', async () => {
  // A key is cached for 10 s, and looked up again with each heartbeat.
  await eventually(async () => expect([doomed, ...ofKey].map(isOver)).toEqual([true, true, true]));
});
