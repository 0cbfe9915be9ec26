import { expect, test } from 'vitest';
import { fixedSchedules } from './fixed.ts';
import { simulate } from './simulation.ts';

/** Files that share the fixed schedules, so that they run in parallel. */
const FILES = 2;

/** One of them alone: `npm run simulate -- --short --seed N --schedules 1`. @param file number of the file, from 0 */
export function testFixedSchedules(file: number): void {
  test('every promise is kept after random faults', { timeout: 600_000 }, async () => {
    const schedules = fixedSchedules().filter((_, n) => n % FILES === file);
    const { failures } = await simulate({ schedules, keepGoing: true, shrinkingTries: 0 });
    expect(failures.map(({ report }) => ({ seed: report.seed, violations: report.violations }))).toEqual([]);
  });
}
