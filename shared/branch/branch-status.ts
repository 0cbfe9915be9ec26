/** Status of a branch (specification 3.1, which mentions `creating` in its count of active branches). */
export const BRANCH_STATUSES = ['creating', 'active', 'expired', 'deleting', 'deleted', 'failed'] as const;
export type BranchStatus = (typeof BRANCH_STATUSES)[number];

/** Statuses that count towards the branch limit and the storage quota (specification 7 and 8). */
export const COUNTED_STATUSES = ['creating', 'active', 'expired'] as const satisfies readonly BranchStatus[];

/** Statuses in which a branch has, or is about to have, sessions. */
export const USED_STATUSES = ['creating', 'active'] as const satisfies readonly BranchStatus[];

interface Transition {
  from: readonly BranchStatus[];
  to: BranchStatus;
}

/** The transition of each event. In a status that `from` does not list, the event is refused. */
export const BRANCH_TRANSITIONS = {
  proved: { from: ['creating'], to: 'active' },
  gave_up: { from: ['creating'], to: 'failed' },
  /** A deleted branch whose database was kept comes back. */
  restore: { from: ['deleted'], to: 'creating' },
  not_restored: { from: ['creating'], to: 'deleted' },
  expire: { from: ['active'], to: 'expired' },
  extend: { from: ['active', 'expired'], to: 'active' },
  delete: { from: ['creating', 'active', 'expired', 'failed'], to: 'deleted' },
  /** The branch has been expired for as long as expired branches are kept. */
  retire: { from: ['expired'], to: 'deleted' },
  delete_project: { from: ['creating', 'active', 'expired', 'failed'], to: 'deleting' },
  /** Its database is missing on the host. */
  lost: { from: ['active', 'expired'], to: 'failed' },
  /** The lost database is back. After its expiry time, `expire` follows immediately. */
  found: { from: ['failed'], to: 'active' },
} as const satisfies Record<string, Transition>;

export type BranchEvent = keyof typeof BRANCH_TRANSITIONS;

/** Statuses in which `event` is allowed, for the condition of an SQL update. */
export const statusesAllowing = (event: BranchEvent): BranchStatus[] => [...BRANCH_TRANSITIONS[event].from];
