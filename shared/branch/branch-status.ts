/** Status of a branch (spec 3.1; `creating` is named there by the count of active branches). */
export const BRANCH_STATUSES = ['creating', 'active', 'expired', 'deleting', 'deleted', 'failed'] as const;
export type BranchStatus = (typeof BRANCH_STATUSES)[number];

/** Statuses that count against the cap on branches (spec section 7). */
export const COUNTED_STATUSES = ['creating', 'active', 'expired'] as const satisfies readonly BranchStatus[];

interface Transition {
  from: readonly BranchStatus[];
  to: BranchStatus;
}

/** What each event makes of a branch, and of which; in any other status the event is refused. */
export const BRANCH_TRANSITIONS = {
  proved: { from: ['creating'], to: 'active' },
  gave_up: { from: ['creating'], to: 'failed' },
  expire: { from: ['active'], to: 'expired' },
  extend: { from: ['active', 'expired'], to: 'active' },
  delete: { from: ['creating', 'active', 'expired', 'failed'], to: 'deleted' },
  delete_project: { from: ['creating', 'active', 'expired', 'failed'], to: 'deleting' },
  /** Its database is gone from the host. */
  lost: { from: ['active', 'expired'], to: 'failed' },
  /** The lost database is back; past its time to live, `expire` follows at once. */
  found: { from: ['failed'], to: 'active' },
} as const satisfies Record<string, Transition>;

export type BranchEvent = keyof typeof BRANCH_TRANSITIONS;

/** Statuses in which `event` is possible, for the condition of an SQL update. */
export const statusesAllowing = (event: BranchEvent): BranchStatus[] => [...BRANCH_TRANSITIONS[event].from];
