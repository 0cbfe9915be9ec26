/** Status of a branch (spec 3.1; `creating` is named there by the count of active branches). */
export const BRANCH_STATUSES = ['creating', 'active', 'expired', 'deleting', 'deleted', 'failed'] as const;
export type BranchStatus = (typeof BRANCH_STATUSES)[number];

/** Statuses that count against the cap on branches (spec section 7). */
export const COUNTED_STATUSES = ['creating', 'active', 'expired'] as const satisfies readonly BranchStatus[];

export type BranchEvent =
  | 'proved'
  | 'gave_up'
  | 'expire'
  | 'extend'
  | 'delete'
  | 'delete_project'
  | 'dropped';

/** What each event makes of each status; `null`: the event is refused there. Total, so that no hole compiles. */
export const BRANCH_TRANSITIONS: Record<BranchStatus, Record<BranchEvent, BranchStatus | null>> = {
  creating: {
    proved: 'active',
    gave_up: 'failed',
    expire: null,
    extend: null,
    delete: 'deleted',
    delete_project: 'deleting',
    dropped: null,
  },
  active: {
    proved: 'active',
    gave_up: null,
    expire: 'expired',
    extend: 'active',
    delete: 'deleted',
    delete_project: 'deleting',
    dropped: 'failed',
  },
  expired: {
    proved: null,
    gave_up: null,
    expire: 'expired',
    extend: 'active',
    delete: 'deleted',
    delete_project: 'deleting',
    dropped: 'failed',
  },
  deleting: {
    proved: null,
    gave_up: null,
    expire: null,
    extend: null,
    delete: null,
    delete_project: 'deleting',
    dropped: 'deleted',
  },
  deleted: {
    proved: null,
    gave_up: null,
    expire: null,
    extend: null,
    delete: null,
    delete_project: null,
    dropped: 'deleted',
  },
  failed: {
    proved: null,
    gave_up: 'failed',
    expire: null,
    extend: null,
    delete: 'deleted',
    delete_project: 'deleting',
    dropped: 'failed',
  },
};

/** Statuses in which `event` is possible, for the condition of an SQL update. */
export const statusesAllowing = (event: BranchEvent): BranchStatus[] =>
  BRANCH_STATUSES.filter((status) => BRANCH_TRANSITIONS[status][event] !== null);
