import { z } from 'zod';
import { DRILL_PROBLEMS, type DrillProblem as Problem } from '../drill-problems.ts';
import { Moment } from '../moment.ts';
import { Id } from './operation.ts';

export const DrillProblem = z.enum(Object.keys(DRILL_PROBLEMS) as [Problem, ...Problem[]]);

/** Result of a recovery of `main` to a recorded time. No value of a row is in it. */
export const DrillReport = z.strictObject({
  project_id: Id,
  drill_id: Id,
  drilled_at: Moment,
  /** The time that was recovered. */
  at: Moment,
  duration_ms: z.int().nonnegative(),
  /** Tables and rows that were compared with the record. */
  tables: z.int().nonnegative(),
  rows: z.int().nonnegative(),
  /** Null: it has passed. */
  problem: DrillProblem.nullable(),
});
export type DrillReport = z.output<typeof DrillReport>;

/** A project is drilled once in this time, in milliseconds. */
export const DRILL_EVERY_MS = 7 * 86_400_000;
/** Without a drill that has passed for this time, its recoveries count as unproven. */
export const DRILL_OVERDUE_MS = 14 * 86_400_000;
