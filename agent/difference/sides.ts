/** A database that the read-only login of this branch can read: the branch's own, or a clone of a snapshot. */
export interface Side {
  branch_id: string;
  database: string;
}

/** What is compared: changes are those that lead from `before` to `after`. */
export interface Sides {
  before: Side;
  after: Side;
}
