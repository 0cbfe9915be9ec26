import { expect, test } from 'vitest';
import { IS_NIGHTLY } from '../support/nightly.ts';
import type { PlantName } from './plants.ts';
import { type Form, ONE_HOST, TWO_HOSTS, WITH_STANDBY } from './schedule.ts';
import { schedulesFrom, simulate } from './simulation.ts';

const PLANTED: [what: string, plant: PlantName, form: Form, found: RegExp][] = [
  [
    ...(['a saga step that is not idempotent', 'clone-again', ONE_HOST] as const),
    /^double clones: \d+ were begun, \d+ were wanted$/,
  ],
  [
    ...(['a standing snapshot that is out of date', 'stale-standing', ONE_HOST] as const),
    /: branch branch-\d+ \(.+\): row \d+ is .+, expected v\d+/,
  ],
  [
    ...(['a move that loses rows', 'moved-rows-lost', TWO_HOSTS] as const),
    /: branch main \(.+\): row \d+ is null, expected v\d+/,
  ],
  [
    ...(['a move that leaves its login', 'mover-stays', TWO_HOSTS] as const),
    /^what moves need: mv_\w+ is too much$/,
  ],
  [
    ...(['a second that has not survived', 'late-second', WITH_STANDBY] as const),
    /^promotion: the second that was reported is after the loss$/,
  ],
];

test.runIf(IS_NIGHTLY).each(PLANTED)(
  '%s is found within 50 schedules',
  { timeout: 600_000 },
  async (_what, planted, form, found) => {
    const { failures } = await simulate({
      schedules: schedulesFrom(1, 50, 'full', form),
      planted,
      keepGoing: false,
      shrinkingTries: 0,
    });
    expect(failures.flatMap(({ report }) => report.violations)).toContainEqual(expect.stringMatching(found));
  },
);
