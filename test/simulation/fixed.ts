import { planSchedule } from './plan.ts';
import type { Schedule } from './schedule.ts';

/**
 * Seeds of short schedules that together contain every kind of operation and fault, each part killed and frozen,
 * clocks ahead and behind, and a first fault at every step (`plan.test.ts`). A change of the plans requires other seeds.
 */
const SEEDS = [69, 82, 186, 588, 904, 1133, 1266, 1292, 1365, 1629, 2032, 2659, 4475, 5085];

/** The fixed schedules of `npm test`. */
export const fixedSchedules = (): Schedule[] => SEEDS.map((seed) => planSchedule(seed, 'short'));
