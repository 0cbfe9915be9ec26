import { z } from 'zod';
import { Moment } from '../moment.ts';
import { Id } from './operation.ts';

/** Why a drill has failed, in a sentence for its readers. */
export const DRILL_PROBLEMS = {
  base_copy_missing: 'The copy of the files from before the time is gone.',
  log_unreadable: 'The log since then does not lead to the time.',
  content_differs: 'Rows are others than at that time.',
  not_copied: 'The database could not be copied.',
} as const;

export type DrillProblem = keyof typeof DRILL_PROBLEMS;
export const DrillProblem = z.enum(Object.keys(DRILL_PROBLEMS) as [DrillProblem, ...DrillProblem[]]);

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
