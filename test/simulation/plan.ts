import { planFaults } from './plan-faults.ts';
import { planActors, type Work } from './plan-operations.ts';
import { Random } from './random.ts';
import { type Form, ONE_HOST, type Schedule } from './schedule.ts';

const SIZES = {
  full: { actors: 3, groups: [3, 6], faults: 4, hasSeries: true },
  short: { actors: 2, groups: [1, 3], faults: 2, hasSeries: false },
} satisfies Record<string, Work & { faults: number }>;
export type Size = keyof typeof SIZES;

/** @returns the deterministic schedule of that seed and size, for a stage of this form */
export function planSchedule(seed: number, size: Size = 'full', form: Form = ONE_HOST): Schedule {
  const random = new Random(`branchgate ${seed}`);
  const actors = planActors(random.fork('actors'), SIZES[size], form);
  const faults = planFaults(random.fork('faults'), actors, SIZES[size].faults, form);
  return { seed, ...form, actors, faults };
}
