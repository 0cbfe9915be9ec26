import { expect, test } from 'vitest';
import { IS_NIGHTLY } from '../support/nightly.ts';
import type { PlantName } from './plants.ts';
import { schedulesFrom, simulate } from './simulation.ts';

const PLANTED: [what: string, plant: PlantName, hosts: number, found: RegExp][] = [
  [
    ...(['a saga step that is not idempotent', 'clone-again', 1] as const),
    /^double clones: \d+ were begun, \d+ were wanted$/,
  ],
  [
    ...(['a move that loses rows', 'moved-rows-lost', 2] as const),
    /: branch main \(.+\): row \d+ is null, expected v\d+/,
  ],
  [...(['a move that leaves its login', 'mover-stays', 2] as const), /^what moves need: mv_\w+ is too much$/],
];

test.runIf(IS_NIGHTLY).each(PLANTED)(
  '%s is found within 50 schedules',
  { timeout: 600_000 },
  async (_what, planted, hosts, found) => {
    const { failures } = await simulate({
      schedules: schedulesFrom(1, 50, 'full', hosts),
      planted,
      keepGoing: false,
      shrinkingTries: 0,
    });
    expect(failures.flatMap(({ report }) => report.violations)).toContainEqual(expect.stringMatching(found));
  },
);
