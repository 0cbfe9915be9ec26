import { expect, test } from 'vitest';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { fixedSchedules } from './fixed.ts';
import { simulate } from './simulation.ts';

/** One of them alone: `npm run simulate -- --short --seed N --schedules 1`. */
test.runIf(IS_NIGHTLY)('every promise is kept after random faults', { timeout: 900_000 }, async () => {
  const { failures } = await simulate({ schedules: fixedSchedules(), keepGoing: true, shrinkingTries: 0 });
  expect(failures.map(({ report }) => ({ seed: report.seed, violations: report.violations }))).toEqual([]);
});
