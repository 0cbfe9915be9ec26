import { beforeEach, expect, test, vi } from 'vitest';
import { DiskUsage } from '../../../agent/measurement/disk-usage.ts';

const measureFolder = vi.hoisted(() => vi.fn());
vi.mock('../../../agent/volumes/disk-bytes.ts', async (original) => ({
  ...(await original()),
  measureFolder,
}));

let now = 0;
vi.spyOn(performance, 'now').mockImplementation(() => now);

beforeEach(() => {
  now = 0;
  measureFolder.mockReset().mockImplementation(async () => ({ own: 1, shared: 2, extents: 3, layout: null }));
});

/** A project whose database has had this many changes. */
function openUsage() {
  const row = { id: 'branch', project_id: 'project', oid: '5', is_branch: true, changes: '0' };
  const usage = new DiskUsage({
    settings: { PGDATA_DIR: '/data' },
    postgres: { query: async () => ({ rows: [{ ...row }] }) } as never,
    cloneMethod: 'reflink',
    log: () => {},
  });
  return {
    usage,
    at: (ms: number, changes: string) => {
      now = ms;
      row.changes = changes;
      return usage.measure();
    },
  };
}

test('a project is measured again within a minute after a change, and says when it was measured', async () => {
  const { usage, at } = openUsage();
  expect(await at(0, '0')).toBe(1);
  const { disk_measured_at: first = '' } = usage.of('project');
  expect(Date.parse(first)).toBeGreaterThan(0);
  expect(await at(55_000, '0')).toBe(0);
  expect(await at(55_001, '1')).toBe(1);
  expect(await at(60_000, '2')).toBe(0);
  expect(await at(110_000, '2')).toBe(1);
});

test('new clones have a project measured as often as a twentieth of the time allows', async () => {
  let clones = 0;
  const usage = new DiskUsage({
    settings: { PGDATA_DIR: '/data' },
    postgres: {
      query: async () => ({
        rows: Array.from({ length: clones }, (_, n) => ({
          id: `branch-${n}`,
          project_id: 'project',
          oid: String(n),
          is_branch: true,
          changes: '0',
        })),
      }),
    } as never,
    cloneMethod: 'reflink',
    log: () => {},
  });
  measureFolder.mockImplementation(async () => {
    now += 50;
    return { own: 1, shared: 2, extents: 3, layout: null };
  });
  const measuredAt = async (ms: number) => {
    now = ms;
    clones += 1;
    return usage.measure();
  };
  expect(await measuredAt(0)).toBe(1);
  expect(await measuredAt(1_000)).toBe(0);
  expect(await measuredAt(1_200)).toBe(3);
  expect(await measuredAt(3_000)).toBe(0);
  expect(await measuredAt(4_400)).toBe(5);
});

test('measuring projects that change takes a twentieth of the time at most', async () => {
  const { at } = openUsage();
  measureFolder.mockImplementation(async () => {
    now += 10_000;
    return { own: 1, shared: 2, extents: 3, layout: null };
  });
  expect(await at(0, '0')).toBe(1);
  expect(await at(100_000, '1')).toBe(0);
  expect(await at(211_000, '1')).toBe(1);
});
