import type { Queryable } from '../postgres/connect.ts';

/** A branch that accepts no connections until its window ends. */
export interface BlockedBranch {
  branch_id: string;
  database: string;
  until: Date;
  /** Milliseconds until then. */
  ends_in: number;
}

/** Ordered by the end of their window. A branch whose window has ended counts as open even if no agent was running. */
export async function readBlockedBranches(db: Queryable): Promise<BlockedBranch[]> {
  const { rows } = await db.query<BlockedBranch>(
    `SELECT branch_id, database, until, (extract(epoch FROM until - clock_timestamp()) * 1000)::float8 AS ends_in
     FROM blocked_branch JOIN branch USING (branch_id)
     WHERE until > clock_timestamp() ORDER BY until`,
  );
  return rows;
}
