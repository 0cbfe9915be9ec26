import type { BlockReason } from '../../shared/block.ts';
import type { Queryable } from '../postgres/connect.ts';

/** A branch that refuses the clients of one network, or of all. */
export interface Block {
  branch_id: string;
  /** In canonical form; null for every network. */
  address: string | null;
}

/** Identifies a block. */
export const blockKey = ({ branch_id, address }: Block) => `${branch_id} ${address ?? '*'}`;

/** A block in the agent's tables. */
export interface StoredBlock {
  project_id: string;
  branch_id: string;
  reason: BlockReason;
  until: Date;
}

/** A branch that accepts no connections from one network, or (null) from any, until a window of attempts ends. */
export interface BlockedAddress extends Block {
  database: string;
  until: Date;
  /** Milliseconds until then. */
  ends_in: number;
}

/** Ordered by the end of their window. One whose window has ended counts as open even if no agent was running. */
export async function readBlockedAddresses(db: Queryable): Promise<BlockedAddress[]> {
  const { rows } = await db.query<BlockedAddress>(
    `SELECT branch_id, address::text, database, until,
            (extract(epoch FROM until - clock_timestamp()) * 1000)::float8 AS ends_in
     FROM blocked_address JOIN branch USING (branch_id)
     WHERE until > clock_timestamp() ORDER BY until`,
  );
  return rows;
}

/** The same as the link reports it to the edge: one block for each branch, until its last network is open again. */
export async function readAttemptBlocks(db: Queryable): Promise<StoredBlock[]> {
  const { rows } = await db.query<StoredBlock>(
    `SELECT project_id, branch_id, 'attempts' AS reason, max(blocked_address.until) AS until
     FROM blocked_address JOIN branch USING (branch_id)
     WHERE until > clock_timestamp() GROUP BY project_id, branch_id ORDER BY branch_id`,
  );
  return rows;
}

/** Stores exactly these blocks, each for a time in milliseconds. The rule files follow with the next sync. */
export async function writeBlockedAddresses(
  db: Queryable,
  blocked: readonly (Block & { endsIn: number })[],
): Promise<void> {
  await db.query(
    `WITH wanted AS (
       SELECT branch_id, address, clock_timestamp() + ends_in * interval '1 millisecond' AS until
       FROM unnest($1::uuid[], $2::cidr[], $3::float8[]) AS wanted (branch_id, address, ends_in)
       JOIN branch USING (branch_id)
     ), open_again AS (
       DELETE FROM blocked_address AS stored WHERE NOT EXISTS (
         SELECT FROM wanted
         WHERE branch_id = stored.branch_id AND address IS NOT DISTINCT FROM stored.address)
     )
     INSERT INTO blocked_address (branch_id, address, until) SELECT branch_id, address, until FROM wanted
     ON CONFLICT (branch_id, address) DO UPDATE SET until = excluded.until`,
    [
      blocked.map(({ branch_id }) => branch_id),
      blocked.map(({ address }) => address),
      blocked.map(({ endsIn }) => endsIn),
    ],
  );
}

/** Why a watchdog blocks a branch. */
export type GuardReason = Exclude<BlockReason, 'attempts'>;

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
