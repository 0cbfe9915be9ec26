import { planSchedule } from './plan.ts';
import type { Schedule } from './schedule.ts';

/**
 * Seeds of short schedules that together contain every kind of operation and fault, each part killed and frozen,
 * clocks ahead and behind, and a first fault at every step (`plan.test.ts`). A change of the plans requires other seeds.
 */
const SEEDS = [
  229, 278, 305, 377, 443, 489, 744, 1020, 1757, 1955, 2077, 2324, 2365, 2367, 2436, 2467, 2577, 2727, 2842,
  2866,
];

/** The fixed schedules of `npm test`. */
export const fixedSchedules = (): Schedule[] => SEEDS.map((seed) => planSchedule(seed, 'short'));
