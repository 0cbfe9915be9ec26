import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import type { Comparison } from '../../../agent/difference/comparison.ts';
import { ComparisonProgress } from '../../../agent/difference/comparison-progress.ts';
import type { TablePair } from '../../../agent/difference/tables.ts';
import { progressOfJob } from '../../../agent/process/progress.ts';

const dataDir = mkdtempSync(join(tmpdir(), 'branchgate-progress-'));
afterAll(() => rmSync(dataDir, { recursive: true }));

const table = (rows: number, pages: number) => ({ rows, pages });
const PAIRS = [
  { name: 'full', before: table(1_000, 10), after: table(1_000, 10) },
  { name: 'by_blocks', before: table(1_000, 10), after: table(1_000, 10) },
  { name: 'unchanged', before: table(9_000, 90), after: table(9_000, 90) },
  { name: 'unknown', before: null, after: table(-1, 0) },
  { name: 'absurd', before: table(Number.NaN, 0), after: table(Number.POSITIVE_INFINITY, 10) },
] as unknown as TablePair[];
const BLOCKS: Record<string, [number, number][] | null> = {
  full: null,
  // The table was cut off in between, so all blocks from there are read.
  by_blocks: [
    [0, 2],
    [7, 4_294_967_294],
  ],
  unchanged: [],
  unknown: null,
  absurd: null,
};

function progress() {
  const reported: number[] = [];
  const comparison = {
    pairs: PAIRS,
    blocksOf: ({ name }: TablePair) => BLOCKS[name] ?? null,
    before: { processID: 11 },
    after: { processID: 12 },
  };
  const made = new ComparisonProgress(comparison as unknown as Comparison, (done) => reported.push(done));
  return { made, reported, begin: (at: number) => made.begin(PAIRS[at] as TablePair) };
}

test('what is done of the rows that are to be read, also if there are more than the statistics say', () => {
  const { made, reported, begin } = progress();
  begin(0);
  made.fetched(500);
  made.fetched(9_000);
  begin(1);
  made.fetched(500);
  begin(2);
  begin(3);
  made.fetched(1);
  // 2,000 rows of the first table, and half of as many of the second one.
  expect(reported).toEqual([500 / 3_000, 2_000 / 3_000, 2_500 / 3_000, 1]);
});

test('rows that PostgreSQL sorts are seen by the size of its files', async () => {
  const folder = join(dataDir, 'base/pgsql_tmp');
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'pgsql_tmp11.0'), Buffer.alloc(40_000));
  writeFileSync(join(folder, 'pgsql_tmp12.1'), Buffer.alloc(40_000));
  writeFileSync(join(folder, 'pgsql_tmp110.0'), Buffer.alloc(40_000));
  const { made, reported, begin } = progress();
  begin(0);
  await made.during(dataDir, () => expect.poll(() => reported.length).toBeGreaterThan(0), 5);
  // 1,000 of the 2,000 rows of this table are sorted, and none is fetched.
  expect(reported[0]).toBe(500 / 3_000);
  made.fetched(1_000);
  expect(reported.at(-1)).toBe(1_000 / 3_000);
});

test('an operation for a job is reported every two seconds, and never as finished', () => {
  let now = 0;
  const reports: unknown[] = [];
  const params = { project_id: 'p', job_id: 'j', other: 1 };
  const onProgress = progressOfJob(
    params,
    (report) => reports.push(report),
    () => now,
  );
  for (const [at, done] of [
    [1_999, 0.1],
    [2_000, 0.254],
    [2_500, 0.3],
    [4_000, 1.7],
  ] as const) {
    now = at;
    onProgress?.(done);
  }
  expect(reports).toEqual([25, 99].map((percent) => ({ project_id: 'p', job_id: 'j', percent })));
  now = 6_000;
  const replay = { bytes: 10, replayed_bytes: 5, seconds_left: 1 };
  onProgress?.(0.5, () => ({ replay }));
  expect(reports.at(-1)).toEqual({ project_id: 'p', job_id: 'j', percent: 50, replay });
  expect(progressOfJob({ ...params, job_id: null }, () => {})).toBeUndefined();
});
