import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { test } from 'vitest';
import { Bisections } from '../../../agent/past/bisections.ts';
import type { Pool } from '../../../agent/postgres/connect.ts';
import type { AgentSettings } from '../../../agent/process/settings.ts';
import { microsecondsOf, momentAt } from '../../../shared/moment.ts';
import { Random } from '../../simulation/random.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

const SETTINGS = { PGDATA_DIR: '/nowhere/data', PAST_DIR: '/nowhere/past' } as AgentSettings;
/** Tenants are not known, so each project is one. */
const POOL = { query: async () => ({ rows: [] }) } as unknown as Pool;
const START = microsecondsOf('2026-11-23T00:00:00.000000Z');
const DAY_MS = 86_400_000;
const DAY = 1000n * BigInt(DAY_MS);
const TRANSACTIONS = IS_NIGHTLY ? 200_000 : 20_000;
const PLANTED = 50;

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

test('fifty planted commits of a day of many transactions are each found, with few probes', async () => {
  const random = new Random('bisections');
  const commits = [
    ...new Set(
      Array.from(
        { length: TRANSACTIONS },
        () => START + 1000n * BigInt(random.int(0, DAY_MS - 1)) + BigInt(random.int(1, 999)),
      ),
    ),
  ].sort((one, other) => (one < other ? -1 : 1));
  const bisections = new Bisections(SETTINGS);
  const most: number[] = [];
  for (let n = 0; n < PLANTED; n += 1) {
    const planted = random.pick(commits);
    const about = await begin(bisections);
    let probes = 0;
    let verdict: 'good' | 'bad' | null = null;
    for (;;) {
      const { step } = await bisections.step({ ...about, verdict });
      assert(step);
      if (step.probe === null) {
        assert.equal(step.first_bad, momentAt(planted));
        break;
      }
      probes += 1;
      const at = microsecondsOf(step.probe);
      // PostgreSQL says this at the end of the replay.
      const next = countUpTo(commits, at);
      const before = commits[next - 1];
      const after = commits[next];
      bisections.recovered(about.bisection_id, {
        before: before === undefined ? null : momentAt(before),
        after: after === undefined ? null : momentAt(after),
      });
      verdict = at >= planted ? 'bad' : 'good';
    }
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
