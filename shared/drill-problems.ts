/** Why a drill of a recovery has failed, in a sentence for its readers. */
export const DRILL_PROBLEMS = {
  base_copy_missing: 'The copy of the files from before the time is gone.',
  log_unreadable: 'The log since then does not lead to the time.',
  content_differs: 'Rows are others than at that time.',
  not_copied: 'The database could not be copied.',
} as const;

export type DrillProblem = keyof typeof DRILL_PROBLEMS;
