import { planFaults } from './plan-faults.ts';
import { planActors } from './plan-operations.ts';
import { Random } from './random.ts';
import type { Schedule } from './schedule.ts';

/** The schedule of that seed, always the same. */
export function planSchedule(seed: number): Schedule {
  const random = new Random(`branchgate ${seed}`);
  const actors = planActors(random.fork('actors'));
  return { seed, actors, faults: planFaults(random.fork('faults'), actors) };
}
