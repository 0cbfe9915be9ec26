import { IS_NIGHTLY } from '../support/nightly.ts';
import { planSchedule } from './plan.ts';
import type { Schedule } from './schedule.ts';

/** The seed of a short schedule. */
const DAILY = [4211];

/**
 * Seeds of short schedules that together contain every kind of operation and fault, each part killed and frozen, clocks
 * ahead and behind (`plan.test.ts`), and a first fault at every step but those that
 * `test/end-to-end/faults-batch-creation.e2e.test.ts` and `test/end-to-end/faults-history.e2e.test.ts` strike. A change
 * of the plans requires other seeds.
 */
export const NIGHTLY = [954, 1312, 2583, 3477, 4211, 5268, 6872, 7593, 7624, 7706, 8029, 9102, 9128, 10008];

/** The fixed schedules of this run. */
export const fixedSchedules = (): Schedule[] =>
  (IS_NIGHTLY ? NIGHTLY : DAILY).map((seed) => planSchedule(seed, 'short'));
