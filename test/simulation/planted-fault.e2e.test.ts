import { expect, test } from 'vitest';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { schedulesFrom, simulate } from './simulation.ts';

test.runIf(IS_NIGHTLY)(
  'a saga step that is not idempotent is found within 50 schedules',
  { timeout: 600_000 },
  async () => {
    const { failures } = await simulate({
      schedules: schedulesFrom(IS_NIGHTLY ? 1 : 2, 50),
      planted: 'clone-again',
      keepGoing: false,
      shrinkingTries: 0,
    });
    expect(failures.flatMap(({ report }) => report.violations)).toContainEqual(
      expect.stringMatching(/^double clones: \d+ were begun, \d+ were wanted$/),
    );
  },
);
