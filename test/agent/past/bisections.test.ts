import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test, vi } from 'vitest';
import { Bisections } from '../../../agent/past/bisections.ts';
import type { Pool } from '../../../agent/postgres/connect.ts';
import type { AgentSettings } from '../../../agent/process/settings.ts';
import { microsecondsOf, momentAt } from '../../../shared/moment.ts';
import { Random } from '../../simulation/random.ts';
import { eventually } from '../../support/eventually.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

const SETTINGS = { PGDATA_DIR: '/nowhere/data', PAST_DIR: '/nowhere/past' } as AgentSettings;
/** Tenants are not known, so each project is one. */
const POOL = { query: async () => ({ rows: [] }) } as unknown as Pool;
const START = microsecondsOf('2026-11-23T00:00:00.000000Z');
const DAY_MS = 86_400_000;
const DAY = 1000n * BigInt(DAY_MS);
const TRANSACTIONS = IS_NIGHTLY ? 200_000 : 20_000;
const PLANTED = 50;

/** Commits at random times of the day, in order. */
const commitsOf = (random: Random, count: number) =>
  [
    ...new Set(
      Array.from(
        { length: count },
        () => START + 1000n * BigInt(random.int(0, DAY_MS - 1)) + BigInt(random.int(1, 999)),
      ),
    ),
  ].sort((one, other) => (one < other ? -1 : 1));

const begin = async (bisections: Bisections, project_id: string = randomUUID()) => {
  const bisection_id = randomUUID();
  const range = { good: momentAt(START), bad: momentAt(START + DAY) };
  await bisections.start(POOL, { bisection_id, project_id, branch_id: randomUUID(), ...range });
  return { bisection_id, project_id };
};

/** How many of the times are not later. */
function countUpTo(times: readonly bigint[], at: bigint): number {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if ((times[middle] ?? 0n) > at) high = middle;
    else low = middle + 1;
  }
  return low;
}

type Verdict = 'good' | 'bad' | 'skip';

/** Judges each probe, until there is none. @returns the last step, and the number of probes */
async function search(
  bisections: Bisections,
  about: Awaited<ReturnType<typeof begin>>,
  commits: readonly bigint[],
  judge: (at: bigint, commit: number) => Verdict,
) {
  let verdict: Verdict | null = null;
  for (let probes = 0; ; probes += 1) {
    const { step } = await bisections.step({ ...about, verdict });
    assert(step);
    if (step.probe === null) return { step, probes };
    const at = microsecondsOf(step.probe);
    // PostgreSQL says this at the end of the replay.
    const next = countUpTo(commits, at);
    const before = commits[next - 1];
    const after = commits[next];
    bisections.recovered(about.bisection_id, {
      before: before === undefined ? null : momentAt(before),
      after: after === undefined ? null : momentAt(after),
    });
    verdict = judge(at, next - 1);
  }
}

test('fifty planted commits of a day of many transactions are each found, with few probes', async () => {
  const random = new Random('bisections');
  const commits = commitsOf(random, TRANSACTIONS);
  const bisections = new Bisections(SETTINGS);
  const most: number[] = [];
  for (let n = 0; n < PLANTED; n += 1) {
    const planted = random.pick(commits);
    const about = await begin(bisections);
    const { step, probes } = await search(bisections, about, commits, (at) =>
      at >= planted ? 'bad' : 'good',
    );
    assert.equal(step.first_bad, momentAt(planted));
    most.push(probes);
    await bisections.end(about);
  }
  assert(Math.max(...most) <= Math.log2(TRANSACTIONS) + 3, `probes: ${most}`);
});

test('a tenant has one bisection, and a host three; another project sees none of them', async () => {
  const bisections = new Bisections(SETTINGS);
  const first = await begin(bisections);
  await assert.rejects(begin(bisections, first.project_id), { code: 'HOST_BUSY' });
  await begin(bisections);
  await begin(bisections);
  await assert.rejects(begin(bisections), { code: 'HOST_BUSY' });
  const foreign = { bisection_id: first.bisection_id, project_id: randomUUID() };
  assert.deepEqual(await bisections.step({ ...foreign, verdict: null }), { step: null });
  assert.deepEqual(await bisections.end(foreign), { ended: false });
  assert.throws(() => bisections.probeOf(foreign.bisection_id, foreign.project_id));
  // A verdict before the probe is recovered says nothing.
  const asked = await bisections.step({ ...first, verdict: null });
  assert.deepEqual(await bisections.step({ ...first, verdict: 'bad' }), asked);
  assert.deepEqual(await bisections.end(first), { ended: true });
  await begin(bisections, first.project_id);
});

test('commits that cannot be judged are skipped, and the range is named if they hide the one that is wrong', async () => {
  const random = new Random('skipped');
  const bisections = new Bisections(SETTINGS);
  for (let n = 0; n < 20; n += 1) {
    const commits = commitsOf(random, 200);
    const wrong = random.int(0, commits.length - 1);
    const skipped = new Set(Array.from({ length: 100 }, () => random.int(0, commits.length - 1)));
    const about = await begin(bisections);
    const { step, probes } = await search(bisections, about, commits, (_, commit) =>
      skipped.has(commit) ? 'skip' : commit >= wrong ? 'bad' : 'good',
    );
    await bisections.end(about);
    // Nothing can be said of a commit beside a state that nobody can judge.
    let from = wrong;
    while (skipped.has(from - 1)) from -= 1;
    let until = wrong;
    while (until < commits.length && skipped.has(until)) until += 1;
    const isFound = from === until;
    assert.equal(step.first_bad, isFound ? momentAt(commits[wrong] ?? 0n) : null, `of ${n}`);
    assert.equal(step.from, momentAt(commits[from] ?? 0n));
    assert.equal(step.until, momentAt(commits[until] ?? START + DAY));
    assert(probes <= commits.length, `${probes} probes`);
  }
});

test('a bisection ends with its hour, and its copy with it', async () => {
  vi.useFakeTimers({
    toFake: ['Date', 'setTimeout', 'clearTimeout'],
    now: Date.parse('2026-11-23T10:00:00Z'),
  });
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-bisections-'));
  try {
    const settings = { ...SETTINGS, PAST_DIR: folder };
    const bisections = new Bisections(settings);
    const about = { bisection_id: randomUUID(), project_id: randomUUID() };
    const range = { good: momentAt(START), bad: momentAt(START + DAY), branch_id: randomUUID() };
    const { ends_at } = await bisections.start(POOL, { ...about, ...range });
    assert.equal(ends_at, '2026-11-23T11:00:00.000Z');
    const copy = bisections.folderOf(about.bisection_id);
    mkdirSync(copy, { recursive: true });
    await vi.advanceTimersByTimeAsync(3_599_999);
    assert((await bisections.step({ ...about, verdict: null })).step);
    await vi.advanceTimersByTimeAsync(1);
    assert.deepEqual(await bisections.step({ ...about, verdict: null }), { step: null });
    vi.useRealTimers();
    await eventually(async () => assert(!existsSync(copy)));
    await begin(bisections, about.project_id);
  } finally {
    vi.useRealTimers();
    rmSync(folder, { recursive: true, force: true });
  }
});
