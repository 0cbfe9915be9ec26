import type { BlockReason } from '../../shared/block.ts';
import type { Queryable } from '../postgres/connect.ts';
import type { AgentSettings } from '../process/settings.ts';

/** A branch that refuses the clients of one network, or of all. */
export interface Block {
  branch_id: string;
  /** In canonical form; null for every network. */
  address: string | null;
}

/** Identifies a block, whatever its reason is. */
export const blockKey = ({ branch_id, address }: Block) => `${branch_id} ${address ?? '*'}`;

export type AttemptScope = AgentSettings['CONNECTION_ATTEMPTS_SCOPE'];

/** With the scope `address`: attempts on a branch from all networks together, as a multiple of those from one. */
const NETWORKS_AT_LIMIT = 20;

/** Attempts a minute after which a network, or the branch, is blocked. @param limit of the branch */
export const attemptsUntilBlock = (scope: AttemptScope, address: Block['address'], limit: number): number =>
  scope === 'address' && address === null ? limit * NETWORKS_AT_LIMIT : limit;

/** Who blocks: the limit of attempts, and the watchdogs, whose blocks disconnect pooled clients too. */
export type Blocker = 'attempts' | 'guard';

/** A block in the agent's tables. */
export interface StoredBlock extends Block {
  project_id: string;
  database: string;
  reason: BlockReason;
  /** The branch's limit of connection attempts; null: the default. */
  connection_attempts: number | null;
  until: Date;
  /** Milliseconds until then. */
  ends_in: number;
}

/** Ordered by their end. A block whose time is over does not count, even if no agent was running. */
export async function readBlocks(db: Queryable): Promise<StoredBlock[]> {
  const { rows } = await db.query<StoredBlock>(
    `SELECT project_id, branch_id, database, reason, address::text, connection_attempts, until,
            (extract(epoch FROM until - clock_timestamp()) * 1000)::float8 AS ends_in
     FROM (
       SELECT branch_id, 'attempts' AS reason, address, until FROM blocked_address
       UNION ALL
       SELECT branch_id, reason, NULL, until FROM blocked_branch
     ) AS block JOIN branch USING (branch_id)
     WHERE until > clock_timestamp() ORDER BY until, branch_id, reason`,
  );
  return rows;
}

/** Each blocker has a table, with what distinguishes several blocks of one branch. */
const TABLES = {
  attempts: { table: 'blocked_address', column: 'address', type: 'cidr' },
  guard: { table: 'blocked_branch', column: 'reason', type: 'text' },
} as const satisfies Record<Blocker, object>;

/** Stores exactly these blocks of one blocker. The rule files follow with the next sync. */
export async function storeBlocks(
  db: Queryable,
  blocker: Blocker,
  blocks: readonly Pick<StoredBlock, 'branch_id' | 'address' | 'reason' | 'ends_in'>[],
): Promise<void> {
  const { table, column, type } = TABLES[blocker];
  await db.query(
    `WITH wanted AS (
       SELECT branch_id, ${column}, clock_timestamp() + ends_in * interval '1 millisecond' AS until
       FROM unnest($1::uuid[], $2::${type}[], $3::float8[]) AS wanted (branch_id, ${column}, ends_in)
       JOIN branch USING (branch_id)
     ), open_again AS (
       DELETE FROM ${table} AS stored WHERE NOT EXISTS (
         SELECT FROM wanted
         WHERE branch_id = stored.branch_id AND ${column} IS NOT DISTINCT FROM stored.${column})
     )
     INSERT INTO ${table} (branch_id, ${column}, until) SELECT branch_id, ${column}, until FROM wanted
     ON CONFLICT (branch_id, ${column}) DO UPDATE SET until = excluded.until`,
    [
      blocks.map(({ branch_id }) => branch_id),
      blocks.map((block) => block[column]),
      blocks.map(({ ends_in }) => ends_in),
    ],
  );
}
