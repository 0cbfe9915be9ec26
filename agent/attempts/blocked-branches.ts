import type { Queryable } from '../postgres/connect.ts';

/** A branch that accepts no connections until its window of attempts ends. */
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
     WHERE reason = 'attempts' AND until > clock_timestamp() ORDER BY until`,
  );
  return rows;
}

/** Stores these as the branches with too many attempts, each for a time in milliseconds. The rule files follow with the next sync. */
export async function writeBlockedBranches(
  db: Queryable,
  blocked: ReadonlyMap<string, { endsIn: number }>,
): Promise<void> {
  await db.query(
    `WITH open_again AS (DELETE FROM blocked_branch WHERE reason = 'attempts' AND branch_id <> ALL ($1::uuid[]))
     INSERT INTO blocked_branch (branch_id, reason, until)
     SELECT branch_id, 'attempts', clock_timestamp() + ends_in * interval '1 millisecond'
     FROM unnest($1::uuid[], $2::float8[]) AS wanted (branch_id, ends_in) JOIN branch USING (branch_id)
     ON CONFLICT (branch_id, reason) DO UPDATE SET until = excluded.until`,
    [[...blocked.keys()], [...blocked.values()].map(({ endsIn }) => endsIn)],
  );
}
