import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { STREAMS_MAX } from '../../../edge/monitoring/measurement-streams.ts';
import { eventually } from '../../support/eventually.ts';
import { type MeasuredProject, MIB, measuredProject } from '../../support/host/measured-project.ts';
import { listenTo } from '../../support/listen.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { measurementOf } from '../../support/records/sample-measurement.ts';
import { type MonitorGateway, startMonitorGateway } from '../../support/worker/monitor-gateway.ts';
import { openStreams } from '../../support/worker/open-streams.ts';

let gateway: MonitorGateway;
let project: MeasuredProject;
let main: string;
let other: string;

beforeAll(async () => {
  gateway = await startMonitorGateway();
});
afterAll(() => gateway?.stop());
beforeEach(async () => {
  project = await measuredProject(gateway);
  main = await project.branch('main');
  other = await project.branch('other');
});

interface StreamedEvent {
  project_id: string;
  observed_at: string;
  branches: { branch_id: string; database_size_bytes: number }[];
}

async function listen(wanted: Partial<Parameters<MeasuredProject['stream']>[0]> = {}) {
  const abort = new AbortController();
  const response = await project.stream(
    { branchId: null, seconds: 600, since: null, ...wanted },
    abort.signal,
  );
  return { response, abort, listener: listenTo<StreamedEvent>(response, abort) };
}

const sizes = ({ listener }: Awaited<ReturnType<typeof listen>>) =>
  listener.events.map(({ data }) =>
    data.branches.map(({ database_size_bytes }) => database_size_bytes / MIB).sort(),
  );

describe('a stream', () => {
  test('sends the last measurement immediately, then each new one', async () => {
    await project.measure({ [main]: 1, [other]: 2 });
    const stream = await listen();
    await eventually(async () => expect(sizes(stream)).toEqual([[1, 2]]));
    await project.measure({ [main]: 3, [other]: 4 });
    await project.measure({ [main]: 5, [other]: 6 });
    await eventually(async () =>
      expect(sizes(stream)).toEqual([
        [1, 2],
        [3, 4],
        [5, 6],
      ]),
    );
    const { id, event, data } = stream.listener.events[0] ?? expect.unreachable();
    expect(event).toBe('measurement');
    expect(data).toMatchObject({ project_id: project.id, observed_at: id });
    expect(data.branches.find(({ branch_id }) => branch_id === main)).toMatchObject({
      cpu_seconds: 0,
      cache_hit_ratio: null,
    });
  });

  test('of a branch contains no other branch', async () => {
    await project.measure({ [main]: 1, [other]: 2 });
    const stream = await listen({ branchId: other });
    await project.measure({ [main]: 3 });
    await project.measure({ [main]: 4, [other]: 5 });
    await eventually(async () => expect(sizes(stream)).toEqual([[2], [5]]));
  });

  test('does not repeat received events after a reconnect', async () => {
    await project.measure({ [main]: 1 });
    const first = await listen();
    await eventually(async () => expect(first.listener.events).toHaveLength(1));
    const since = Date.parse(first.listener.events[0]?.id ?? '');
    const again = await listen({ since });
    await project.measure({ [main]: 2 });
    await eventually(async () => expect(sizes(again)).toEqual([[2]]));
    const later = await listen({ since });
    await eventually(async () => expect(sizes(later)).toEqual([[2]]));
  });

  test('replays a whole hour after a reconnect: 60 measurements of 20 branches', async () => {
    const branches = Object.fromEntries(Array.from({ length: 20 }, () => [crypto.randomUUID(), {}]));
    const times = Array.from({ length: 60 }, (_, n) => Date.now() - (60 - n) * 60_000);
    await project.remember(times.map((at) => measurementOf(project.id, at, branches)));
    const stream = await listen({ since: 0 });
    await eventually(async () => expect(stream.listener.events).toHaveLength(60));
    const received = stream.listener.events.map(({ id, data }) => ({ id, count: data.branches.length }));
    expect(received).toEqual(times.map((at) => ({ id: new Date(at).toISOString(), count: 20 })));
  });

  test('of a project without measurements is empty at first', async () => {
    const stream = await listen({ seconds: 30 });
    await project.measure({ [main]: 1 });
    await eventually(async () => expect(sizes(stream)).toEqual([[1]]));
  });

  test('ends after its duration', async () => {
    await project.measure({ [main]: 1 });
    const stream = await listen({ seconds: 0 });
    await eventually(async () => expect(stream.listener.ended).toBe(true));
    expect(sizes(stream)).toEqual([[1]]);
  });
});

test.runIf(IS_NIGHTLY)(
  'a project has a limited number of streams, and open ones are not closed',
  async () => {
    const streams = await openStreams(STREAMS_MAX, () => listen());
    const expectRefused = async () => {
      const refused = await project.stream({ branchId: null, seconds: 600, since: null });
      expect(refused.status).toBe(429);
      expect(await refused.json()).toEqual({
        ok: false,
        failure: { code: 'STREAM_LIMIT_REACHED', fields: { limit: STREAMS_MAX } },
      });
    };
    await expectRefused();
    for (const { abort } of streams.slice(0, 5)) abort.abort();
    await openStreams(5, () => listen());
    await expectRefused();
    await project.measure({ [main]: 1 });
    for (const stream of streams.slice(5)) await eventually(async () => expect(sizes(stream)).toEqual([[1]]));
  },
);

test('the slots of disconnected clients are free for others, even without a new measurement', async () => {
  for (const { abort } of await openStreams(STREAMS_MAX, () => listen())) abort.abort();
  await openStreams(STREAMS_MAX, () => listen());
});
