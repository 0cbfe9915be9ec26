import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { METRIC_NAMES } from '../../../edge/monitoring/metrics.ts';
import { BRANCHES_MAX } from '../../../shared/limits.ts';
import { measurementOf } from '../../support/records/sample-measurement.ts';
import {
  INTERVAL_SECONDS,
  type MonitorGateway,
  startMonitorGateway,
} from '../../support/worker/monitor-gateway.ts';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
/** Midnight, in the past. */
const START = Date.UTC(2026, 0, 5);

const PROJECT = crypto.randomUUID();
const MAIN = { id: crypto.randomUUID(), branchName: 'main' };
const OTHER = { id: crypto.randomUUID(), branchName: 'other' };

let gateway: MonitorGateway;

beforeAll(async () => {
  gateway = await startMonitorGateway();
});
afterAll(() => gateway?.stop());

const newProject = () => gateway.measurements(crypto.randomUUID());
type Tested = ReturnType<typeof newProject>;

/** The n-th measurement of a series; all its values depend on n. */
const numbered = (n: number, at: number, branches = [MAIN]) =>
  measurementOf(
    PROJECT,
    at,
    Object.fromEntries(
      branches.map(({ id }) => [
        id,
        { transactions_committed: n, active_connections: (n * 7) % 10, cache_hit_ratio: (n % 5) / 4 },
      ]),
    ),
  );

/** Records measurements at these times, each received when it was made. */
const recordAt = (tested: Tested, times: number[], branches = [MAIN]) =>
  tested.record(
    times.map((at, n) => numbered(n, at, branches)),
    branches,
    times,
  );

const every = (step: number, from: number, length: number) =>
  Array.from({ length }, (_, n) => from + n * step);

/** The expected result of `read`, computed from all recorded measurements. */
function expected(times: number[], { start, end, step }: { start: number; end: number; step: number }) {
  const numbers = times.map((at, n) => ({ at, n })).filter(({ at }) => at >= start && at <= end);
  return [...Map.groupBy(numbers, ({ at }) => Math.floor(at / step))].map(([, group]) => {
    const last = group.at(-1);
    const ratios = group.map(({ n }) => (n % 5) / 4);
    return {
      at: last?.at,
      committed: last?.n,
      connections: Math.max(...group.map(({ n }) => (n * 7) % 10)),
      ratio: expect.closeTo(ratios.reduce((sum, ratio) => sum + ratio, 0) / ratios.length, 9),
    };
  });
}

const summaryOf = (points: Awaited<ReturnType<Tested['read']>>) =>
  points.map(({ at, values }) => ({
    at,
    committed: values.transactions_committed,
    connections: values.active_connections,
    ratio: values.cache_hit_ratio,
  }));

describe('one measurement per minute for 26 hours', () => {
  const times = every(MINUTE, START + 17_000, 26 * 60);
  const last = times.at(-1) ?? 0;
  let tested: Tested;

  beforeAll(async () => {
    tested = newProject();
    await recordAt(tested, times);
  });

  test.each([
    ['minutes', MINUTE],
    ['seven minutes', 7 * MINUTE],
    ['hours', HOUR],
    ['six hours', 6 * HOUR],
    ['days', DAY],
  ])('is returned by %s', async (_, step) => {
    const start = step < HOUR ? last - 20 * HOUR : START;
    const range = { start, end: last, step };
    expect(summaryOf(await tested.read(MAIN.id, range))).toEqual(expected(times, range));
  });

  test('is returned between two times, inclusive', async () => {
    const range = { start: times[1000] ?? 0, end: times[1003] ?? 0, step: MINUTE };
    expect((await tested.read(MAIN.id, range)).map(({ at }) => at)).toEqual(times.slice(1000, 1004));
  });

  test('leaves the minutes of one day, and the hours', async () => {
    const counts = await tested.counts();
    expect(counts[MINUTE]).toBeGreaterThanOrEqual(24 * 60);
    expect(counts[MINUTE]).toBeLessThanOrEqual(25 * 60);
    expect(counts[HOUR]).toBe(25);
  });

  test('has no points of another branch', async () => {
    expect(await tested.read(OTHER.id, { start: START, end: last, step: HOUR })).toEqual([]);
  });
});

test('hours are stored for 30 days, days for a year', async () => {
  const tested = newProject();
  const times = every(3 * HOUR, START + 30 * MINUTE, 400 * 8);
  await recordAt(tested, times);
  const last = times.at(-1) ?? 0;
  const counts = await tested.counts();
  expect(counts[HOUR]).toBe(30 * 8);
  expect(counts[DAY]).toBe(365);
  for (const range of [
    { start: last - 29 * DAY, end: last, step: HOUR },
    { start: Math.floor(last / DAY) * DAY - 360 * DAY, end: last, step: DAY },
  ]) {
    expect(
      (await tested.read(MAIN.id, range)).map(({ at, values }) => [at, values.transactions_committed]),
    ).toEqual(expected(times, range).map(({ at, committed }) => [at, committed]));
  }
});

test('a gap of several days loses no earlier points', async () => {
  const tested = newProject();
  const times = [...every(MINUTE, START, 90), START + 3 * DAY];
  await recordAt(tested, times);
  const hours = { start: START, end: START + 3 * DAY, step: HOUR };
  expect(summaryOf(await tested.read(MAIN.id, hours))).toEqual(expected(times, hours));
  const days = { ...hours, step: DAY };
  expect((await tested.read(MAIN.id, days)).map(({ values }) => values.transactions_committed)).toEqual([
    89, 90,
  ]);
  expect((await tested.counts())[MINUTE]).toBe(1);
});

test('the last of several measurements within a minute is stored', async () => {
  const tested = newProject();
  await recordAt(tested, every(1000, START, 150));
  const points = await tested.read(MAIN.id, { start: START, end: START + HOUR, step: MINUTE });
  expect(points.map(({ at, values }) => [at - START, values.transactions_committed])).toEqual([
    [59_000, 59],
    [119_000, 119],
    [149_000, 149],
  ]);
});

const tenBranches = () =>
  Array.from({ length: 10 }, (_, n) => ({ id: crypto.randomUUID(), branchName: `b${n}` }));

test('an hour of ten branches writes 19 rows, however long the history is', async () => {
  const branches = tenBranches();
  const tested = newProject();
  const times = every(MINUTE, START, 27 * 60);
  await recordAt(tested, times.slice(0, 26 * 60), branches);
  const before = await tested.rowsWritten();
  await tested.record(
    times.slice(26 * 60).map((at, n) => numbered(n, at, branches)),
    branches,
    times.slice(26 * 60),
  );
  // Six rows of ten minutes with their later deletion and the head of each, and the hour.
  expect((await tested.rowsWritten()) - before).toBe(6 + 6 + 6 + 1);
});

test('a row of all branches is charged as one, as no index is beside it', async () => {
  const tested = newProject();
  const both = [MAIN, OTHER];
  await recordAt(tested, every(MINUTE, START, 2), both);
  const charged = (at: number) => tested.chargedRows(numbered(1, at, both), both, at);
  expect(await charged(START + 2 * MINUTE)).toBe(0);
  expect(await charged(START + 10 * MINUTE)).toBe(1);
  // The row of ten minutes, and that of the hour.
  expect(await charged(START + HOUR)).toBe(1 + 1);
});

test('an object that loses its memory after each measurement loses none of them', async () => {
  const tested = newProject();
  const times = every(MINUTE, START, 25);
  for (const [n, at] of times.entries()) {
    await tested.record([numbered(n, at)], [MAIN], [at]);
    await tested.reset();
  }
  const points = await tested.read(MAIN.id, { start: START, end: START + HOUR, step: MINUTE });
  expect(points.map(({ at }) => at)).toEqual(times);
  expect((await tested.after(START, 60)).map(({ at }) => at)).toEqual(times.slice(1));
  expect((await tested.last())?.at).toBe(times.at(-1));
});

test('an object whose head is nowhere else has lost at most ten minutes, and continues', async () => {
  const tested = newProject();
  const times = every(MINUTE, START, 40);
  for (const [n, at] of times.slice(0, 25).entries()) await tested.record([numbered(n, at)], [MAIN], [at]);
  await tested.loseKept();
  await tested.reset();
  expect((await tested.last())?.at).toBe(times[20]);
  for (const at of times.slice(25)) await tested.record([numbered(0, at)], [MAIN], [at]);
  const points = await tested.read(MAIN.id, { start: START, end: START + HOUR, step: MINUTE });
  expect(points.map(({ at }) => at)).toEqual([...times.slice(0, 21), ...times.slice(25)]);
});

test('an object that is lost before the link gets its head has what it has stored', async () => {
  const tested = newProject();
  const times = every(MINUTE, START, 12);
  const [closing = 0, next = 0] = times.slice(10);
  await recordAt(tested, times.slice(0, 10));
  const before = await tested.kept();
  // The ten minutes become a row here.
  await tested.record([numbered(10, closing)], [MAIN], [closing]);
  await tested.loseKept(before);
  await tested.reset();
  expect((await tested.last())?.at).toBe(closing);
  await tested.record([numbered(11, next)], [MAIN], [next]);
  const points = await tested.read(MAIN.id, { start: START, end: START + HOUR, step: MINUTE });
  expect(points.map(({ at }) => at)).toEqual(times);
});

test('the last measurement has no history with it', async () => {
  const tested = newProject();
  await recordAt(tested, every(MINUTE, START, 5));
  expect(await tested.last()).not.toHaveProperty('recent');
  expect(await tested.last()).not.toHaveProperty('keptBy');
});

test('minutes of as many branches as a project may have fit into what is stored', async () => {
  const branches = Array.from({ length: BRANCHES_MAX }, (_, n) => ({
    id: crypto.randomUUID(),
    branchName: `b${n}`.padEnd(40, '-'),
  }));
  const tested = newProject();
  const times = every(MINUTE, START, 8);
  const values = Object.fromEntries(METRIC_NAMES.map((name) => [name, 123_456_789_012.345]));
  for (const at of times) {
    const measured = Object.fromEntries(branches.map(({ id }) => [id, values]));
    await tested.record([measurementOf(PROJECT, at, measured)], branches, [at]);
    // Cloudflare's limit of a row and of a value, which workerd does not have.
    if (at > START + 5 * MINUTE) expect(await tested.longest()).toBeLessThan(2_000_000);
  }
  const range = { start: START, end: START + HOUR, step: MINUTE };
  expect((await tested.read(branches.at(-1)?.id ?? '', range)).map(({ at }) => at)).toEqual(times);
});

test('the history of a deleted branch is deleted with the next hour', async () => {
  const tested = newProject();
  const both = every(MINUTE, START, 10);
  await recordAt(tested, both, [MAIN, OTHER]);
  const range = { start: START, end: START + DAY, step: MINUTE };
  expect(await tested.read(OTHER.id, range)).toHaveLength(10);
  const at = START + HOUR;
  const [event] = await tested.record([numbered(10, at, [MAIN, OTHER])], [MAIN], [at]);
  expect(event?.branches.map(({ branch_id }) => branch_id)).toEqual([MAIN.id]);
  expect(await tested.read(OTHER.id, range)).toEqual([]);
  expect(await tested.read(MAIN.id, range)).toHaveLength(11);
  expect(Object.keys((await tested.last())?.branches ?? {})).toEqual([MAIN.id]);
});

describe('the last measurement', () => {
  test('has the earlier values of a branch that is missing in a measurement', async () => {
    const tested = newProject();
    const measured = [
      measurementOf(PROJECT, START, {
        [MAIN.id]: { database_size_bytes: 5 },
        [OTHER.id]: { database_size_bytes: 7 },
      }),
      measurementOf(PROJECT, START + MINUTE, { [MAIN.id]: { database_size_bytes: 6 } }),
    ];
    await tested.record(measured, [MAIN, OTHER], [START, START + MINUTE]);
    const { branches, ids } = (await tested.last()) ?? {};
    expect(branches?.[MAIN.id]?.database_size_bytes).toBe(6);
    expect(branches?.[OTHER.id]?.database_size_bytes).toBe(7);
    expect(ids).toEqual({ main: MAIN.id, other: OTHER.id });
  });

  test('has the last known hit ratio, while the history has none for a time without reads', async () => {
    const tested = newProject();
    const measured = [0.5, null].map((cache_hit_ratio, n) =>
      measurementOf(PROJECT, START + n * MINUTE, { [MAIN.id]: { cache_hit_ratio } }),
    );
    await tested.record(measured, [MAIN], [START, START + MINUTE]);
    expect((await tested.last())?.branches[MAIN.id]?.cache_hit_ratio).toBe(0.5);
    const points = await tested.read(MAIN.id, { start: START, end: START + HOUR, step: MINUTE });
    expect(points.map(({ values }) => values.cache_hit_ratio)).toEqual([0.5, null]);
  });
});

describe('time', () => {
  const committed = async (tested: Tested) =>
    (await tested.last())?.branches[MAIN.id]?.transactions_committed;

  test('a repeated or outdated measurement is ignored', async () => {
    const tested = newProject();
    const first = numbered(1, START);
    const second = numbered(2, START + MINUTE);
    const events = await tested.record(
      [second, second, first],
      [MAIN],
      [0, 10, 20].map((late) => START + MINUTE + late),
    );
    expect(events.map((event) => event !== null)).toEqual([true, false, false]);
    expect(await committed(tested)).toBe(2);
    expect(await tested.counts()).toEqual({ [MINUTE]: 1 });
  });

  test('a fast clock of the host adds no future points, and its correction loses none', async () => {
    const tested = newProject();
    const times = every(MINUTE, START, 5);
    const clocks = [HOUR, HOUR, 0, 0, 0].map((ahead, n) => (times[n] ?? 0) + ahead);
    const events = await tested.record(
      clocks.map((at, n) => numbered(n, at)),
      [MAIN],
      times,
    );
    // Until measurements are overdue, an older timestamp means an older measurement.
    expect(events.map((event) => event?.at ?? null)).toEqual([times[0], times[1], null, null, times[4]]);
    expect(await committed(tested)).toBe(4);
  });

  test('a slow clock of the host is accepted up to one minute', async () => {
    const tested = newProject();
    const [event] = await tested.record([numbered(1, START - DAY)], [MAIN], [START]);
    expect(event?.at).toBe(START - MINUTE);
  });

  test('a measurement is overdue after two and a half intervals', async () => {
    const tested = newProject();
    expect(await tested.isOverdue(START)).toBe(true);
    await tested.record([numbered(1, START)], [MAIN], [START]);
    const late = 2.5 * INTERVAL_SECONDS * 1000;
    expect(await tested.isOverdue(START + late)).toBe(false);
    expect(await tested.isOverdue(START + late + 1)).toBe(true);
  });
});

test('measurements after a time are returned oldest first, up to the limit', async () => {
  const tested = newProject();
  const times = every(MINUTE, START, 30);
  await recordAt(tested, times, [MAIN, OTHER]);
  const missed = await tested.after(times[24] ?? 0, 60);
  expect(missed.map(({ at }) => at)).toEqual(times.slice(25));
  expect(missed[0]?.branches.map(([id]) => id).sort()).toEqual([MAIN.id, OTHER.id].sort());
  expect((await tested.after(START, 3)).map(({ at }) => at)).toEqual(times.slice(-3));
  expect(await tested.after(times.at(-1) ?? 0, 60)).toEqual([]);
});
