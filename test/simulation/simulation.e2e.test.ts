import { expect, test } from 'vitest';
import { schedulesFrom, simulate } from './simulation.ts';

/** `npm run simulate` runs as many as one likes; these are always the same. */
const FIRST_SEED = 1;
const SCHEDULES = 5;

test('what was promised holds after random faults', { timeout: 600_000 }, async () => {
  const schedules = schedulesFrom(FIRST_SEED, SCHEDULES);
  const { failures } = await simulate({ schedules, keepGoing: true, shrinkingTries: 0 });
  expect(failures.map(({ report }) => ({ seed: report.seed, violations: report.violations }))).toEqual([]);
});
