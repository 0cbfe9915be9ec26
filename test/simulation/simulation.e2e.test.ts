import { expect, test } from 'vitest';
import { fixedSchedules } from './fixed.ts';
import { simulate } from './simulation.ts';

/** One of them alone: `npm run simulate -- --short --seed N --schedules 1`. */
test('what was promised holds after random faults', { timeout: 600_000 }, async () => {
  const schedules = fixedSchedules();
  const { failures } = await simulate({ schedules, keepGoing: true, shrinkingTries: 0 });
  expect(failures.map(({ report }) => ({ seed: report.seed, violations: report.violations }))).toEqual([]);
});
