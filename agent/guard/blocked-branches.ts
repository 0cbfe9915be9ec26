import { BlockReason } from '../../shared/block.ts';
import type { Queryable } from '../postgres/connect.ts';

/** A branch that accepts no connections until a time. */
export interface BlockedBranch {
  branch_id: string;
  project_id: string;
  database: string;
  reason: BlockReason;
  until: Date;
  /** Milliseconds until then. */
  ends_in: number;
}

/** What the watchdogs block for; attempts are counted elsewhere. */
const GUARDED = BlockReason.exclude(['attempts']).options;

/** Whether a branch that is blocked for this reason leaves the pooler, so that its clients are disconnected. */
export const disconnects = ({ reason }: Pick<BlockedBranch, 'reason'>) => reason !== 'attempts';

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
       WHERE reason = ANY ($4) AND (branch_id, reason) NOT IN (SELECT branch_id, reason FROM wanted)
     )
     INSERT INTO blocked_branch (branch_id, reason, until) SELECT branch_id, reason, until FROM wanted
     ON CONFLICT (branch_id, reason) DO UPDATE SET until = excluded.until`,
    [
      blocked.map(({ branch_id }) => branch_id),
      blocked.map(({ reason }) => reason),
      blocked.map(({ ends_in }) => ends_in),
      GUARDED,
    ],
  );
}
