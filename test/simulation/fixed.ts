import { planSchedule } from './plan.ts';
import type { Schedule } from './schedule.ts';

/**
 * Seeds of short schedules that together contain every kind of operation and fault, each part killed and frozen,
 * clocks ahead and behind, and a first fault at every step but those of a batch, which
 * `test/end-to-end/faults-batch-creation.e2e.test.ts` strikes (`plan.test.ts`). A change of the plans requires other seeds.
 */
const SEEDS = [7, 1345, 1605, 3105, 3350, 3351, 4556, 5992, 7175, 7533, 8229, 8871, 8930, 10197, 10737];

/** The fixed schedules of `npm test`. */
export const fixedSchedules = (): Schedule[] => SEEDS.map((seed) => planSchedule(seed, 'short'));
