import type { Queryable } from '../postgres/connect.ts';
import type { GuardReason } from './guard.ts';

/** A branch that a watchdog lets accept no connections until a time. */
export interface BlockedBranch {
  branch_id: string;
  project_id: string;
  database: string;
  reason: GuardReason;
  until: Date;
  /** Milliseconds until then. */
  ends_in: number;
}

/** Ordered by the end of their time. A branch whose time is over counts as open even if no agent was running. */
export async function readBlockedBranches(db: Queryable): Promise<BlockedBranch[]> {
  const { rows } = await db.query<BlockedBranch>(
    `SELECT branch_id, project_id, database, reason, until,
            (extract(epoch FROM until - clock_timestamp()) * 1000)::float8 AS ends_in
     FROM blocked_branch JOIN branch USING (branch_id)
     WHERE until > clock_timestamp() ORDER BY until, branch_id, reason`,
  );
  return rows;
}

/** Stores these as all that the watchdogs block. The rule files follow with the next sync. */
export async function writeGuardedBranches(
  db: Queryable,
  blocked: readonly Pick<BlockedBranch, 'branch_id' | 'reason' | 'ends_in'>[],
): Promise<void> {
  await db.query(
    `WITH wanted AS (
       SELECT branch_id, reason, clock_timestamp() + ends_in * interval '1 millisecond' AS until
       FROM unnest($1::uuid[], $2::text[], $3::float8[]) AS wanted (branch_id, reason, ends_in)
       JOIN branch USING (branch_id)
     ), open_again AS (
       DELETE FROM blocked_branch
       WHERE (branch_id, reason) NOT IN (SELECT branch_id, reason FROM wanted)
     )
     INSERT INTO blocked_branch (branch_id, reason, until) SELECT branch_id, reason, until FROM wanted
     ON CONFLICT (branch_id, reason) DO UPDATE SET until = excluded.until`,
    [
      blocked.map(({ branch_id }) => branch_id),
      blocked.map(({ reason }) => reason),
      blocked.map(({ ends_in }) => ends_in),
    ],
  );
}
