import { expect, test } from 'vitest';
import { fixedSchedules } from './fixed.ts';
import { schedulesFrom, simulate } from './simulation.ts';

/** One of them alone: `npm run simulate -- --short --seed N --schedules 1`. */
test('what was promised holds after random faults', { timeout: 600_000 }, async () => {
  const schedules = fixedSchedules();
  const { failures } = await simulate({ schedules, keepGoing: true, shrinkingTries: 0 });
  expect(failures.map(({ report }) => ({ seed: report.seed, violations: report.violations }))).toEqual([]);
});

test('a saga step that is made not idempotent is found within 50 schedules', {
  timeout: 600_000,
}, async () => {
  const schedules = schedulesFrom(1, 50);
  const { failures } = await simulate({
    schedules,
    planted: 'clone-again',
    keepGoing: false,
    shrinkingTries: 0,
  });
  expect(failures.flatMap(({ report }) => report.violations)).toContainEqual(
    expect.stringMatching(/^double clones: \d+ were begun, \d+ were wanted$/),
  );
});
