import { beforeEach, describe, expect, test } from 'vitest';
import { NotificationFilter } from '../../../edge/host-link/notification-filter.ts';
import type { ProjectBlocks } from '../../../shared/block.ts';
import type { NotificationFrame } from '../../../shared/protocol/frames.ts';
import { FakeClock } from '../../support/fake-clock.ts';

const ids = Array.from({ length: 20 }, () => crypto.randomUUID());
const [first = ''] = ids;
const NOTIFICATIONS_PER_MINUTE = 10;

let clock: FakeClock;
let placed: string[];
let lookups: number;
let recorded: string[];
let blocks: ProjectBlocks[];
let sized: string[];
let percents: number[];
let outdated: number;
let events: string[];
let record: () => Promise<void>;
let bounds: { notificationsPerMinute: number };
let filter: NotificationFilter;

beforeEach(() => {
  clock = new FakeClock();
  placed = [...ids];
  lookups = 0;
  recorded = [];
  blocks = [];
  sized = [];
  percents = [];
  outdated = 0;
  events = [];
  record = async () => {};
  bounds = { notificationsPerMinute: NOTIFICATIONS_PER_MINUTE };
  filter = new NotificationFilter({
    placed: async () => {
      lookups += 1;
      return placed;
    },
    record: {
      measurement: async ({ project_id }) => {
        await record();
        recorded.push(project_id);
      },
      sizes: async ({ project_id }) => {
        sized.push(project_id);
      },
      blocks: async (observed) => {
        await record();
        blocks.push(observed);
      },
      progress: async ({ percent }) => {
        percents.push(percent);
      },
      follow: async () => {},
      drill: async () => {},
      inventory_outdated: async () => {
        outdated += 1;
      },
    },
    log: (event) => events.push(event),
    now: () => clock.now(),
    bounds,
  });
});

const frame = (project_id: string, params: object = {}): NotificationFrame => ({
  jsonrpc: '2.0',
  method: 'measurement',
  params: { project_id, observed_at: '2026-01-01T00:00:00.000Z', branches: [], ...params },
});
const receive = (project_id: string, params?: object) => filter.receive(frame(project_id, params));

/** @param seconds of the observation */
const blocksOf = (project_id: string, seconds = 0) => ({
  project_id,
  observed_at: new Date(seconds * 1000).toISOString(),
  blocks: [{ branch_id: first, reason: 'disk', until: '2026-01-01T00:05:00.000Z' }],
});
const receiveBlocks = (params: object) =>
  filter.receive({ jsonrpc: '2.0', method: 'blocks', params: { ...params } });

test('a measurement of a project on the host is passed on', async () => {
  await receive(first);
  await clock.advance(1_000);
  await receive(first);
  expect(recorded).toEqual([first, first]);
  expect(lookups).toBe(1);
});

test('sizes are passed on, apart from measurements, at most twice a second and only of projects on the host', async () => {
  const sizes = (project_id: string, params: object = { sizes: { [first]: 7 } }) =>
    filter.receive({ jsonrpc: '2.0', method: 'sizes', params: { project_id, ...params } });
  await receive(first);
  await sizes(first);
  await sizes(first);
  expect([recorded, sized]).toEqual([[first], [first]]);
  await clock.advance(500);
  await sizes(first);
  expect(sized).toEqual([first, first]);
  await sizes(crypto.randomUUID());
  await sizes(first, { sizes: { [first]: -1 } });
  expect(sized).toEqual([first, first]);
  expect(events).toEqual(['sizes.foreign', 'sizes.malformed']);
});

test('progress of a project on the host is passed on, at most 150 a minute', async () => {
  bounds.notificationsPerMinute = 1_000;
  const progress = (project_id: string, percent: number) =>
    filter.receive({
      jsonrpc: '2.0',
      method: 'progress',
      params: { project_id, job_id: first, percent },
    });
  for (let n = 0; n < 160; n++) await progress(first, n % 100);
  expect(percents).toHaveLength(150);
  await clock.advance(60_000);
  await progress(crypto.randomUUID(), 7);
  await progress(first, 100);
  expect(percents).toHaveLength(150);
  expect(events).toEqual(['progress.foreign', 'progress.malformed']);
});

test("a measurement of another host's project is dropped, at the cost of at most one lookup a second", async () => {
  placed = [];
  for (const id of ids.slice(0, 5)) await receive(id);
  expect(recorded).toEqual([]);
  expect(lookups).toBe(1);
  expect(events).toContain('measurement.foreign');
});

test('a notification about the host itself needs no lookup, and has the limit of a minute', async () => {
  const notice = (params: object) =>
    filter.receive({ jsonrpc: '2.0', method: 'inventory_outdated', params: { ...params } });
  for (let n = 0; n < 2 * NOTIFICATIONS_PER_MINUTE; n++) await notice({});
  expect({ outdated, lookups }).toEqual({ outdated: NOTIFICATIONS_PER_MINUTE, lookups: 0 });
  await clock.advance(60_000);
  await notice({ project_id: first });
  expect(events).toEqual(['inventory_outdated.flood', 'inventory_outdated.malformed']);
});

test('a project that is placed on the host later is found', async () => {
  placed = [];
  await receive(first);
  placed = [first];
  await clock.advance(1_000);
  await receive(first);
  expect(recorded).toEqual([first]);
});

test.each([{ branches: [{}] }, { observed_at: 'yesterday' }, { more: 1 }, { project_id: 'p' }])(
  'a malformed measurement is dropped: %o',
  async (params) => {
    await receive(first, params);
    expect(recorded).toEqual([]);
    expect(events).toEqual(['measurement.malformed']);
  },
);

test('measurements over the limit of a minute are dropped and logged once, until the next minute', async () => {
  for (const id of ids) await receive(id);
  expect(recorded).toEqual(ids.slice(0, NOTIFICATIONS_PER_MINUTE));
  expect(events).toEqual(['measurement.flood']);
  await clock.advance(60_000);
  await receive(first);
  expect(recorded).toHaveLength(NOTIFICATIONS_PER_MINUTE + 1);
});

test('of two immediate measurements of one project the second is dropped', async () => {
  await Promise.all([receive(first), receive(first)]);
  expect(recorded).toEqual([first]);
});

test('a failure of the coordinator is logged and not thrown', async () => {
  record = () => Promise.reject(new Error('broken'));
  await receive(first);
  expect(events).toEqual(['measurement.lost']);
});

describe('blocks', () => {
  test('of a project on the host are passed on, also when they follow each other immediately', async () => {
    const changes = [0, 1, 2].map((seconds) => blocksOf(first, seconds));
    for (const change of changes) await receiveBlocks(change);
    expect(blocks).toEqual(changes);
  });

  test("of another host's project, and malformed ones, are dropped", async () => {
    await receiveBlocks(blocksOf(crypto.randomUUID()));
    await receiveBlocks({ ...blocksOf(first), blocks: [{ branch_id: first, reason: 'mood', until: 'now' }] });
    expect(blocks).toEqual([]);
    expect(events).toEqual(['blocks.foreign', 'blocks.malformed']);
  });

  test('have limits of their own, for the project and for the host', async () => {
    for (const id of ids) await receive(id);
    await receiveBlocks(blocksOf(first));
    expect(blocks).toHaveLength(1);
    bounds.notificationsPerMinute = 1_000;
    for (let seconds = 1; seconds < 100; seconds++) await receiveBlocks(blocksOf(first, seconds));
    expect(blocks).toHaveLength(30);
    await receiveBlocks(blocksOf(ids[1] ?? ''));
    expect(blocks).toHaveLength(31);
  });
});
