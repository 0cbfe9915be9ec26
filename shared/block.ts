import { z } from 'zod';

/**
 * Why a host accepts no connections to a branch. The first six say what it took too much of; `attempts`
 * concerns the branch, or only the addresses that tried too many passwords.
 */
export const BlockReason = z.enum([
  'locks',
  'connections',
  'disk',
  'transaction_ids',
  'autovacuum',
  'files',
  'attempts',
]);
export type BlockReason = z.output<typeof BlockReason>;

/** Networks of one branch that a host reports; the others are refused as well. */
export const CLOSED_NETWORKS_MAX = 20;

/** A network that made too many connection attempts. */
const ClosedNetwork = z.strictObject({
  /** In canonical form; null: every network, because all of them together made too many. */
  network: z.string().max(64).nullable(),
  until: z.iso.datetime(),
  /** The limit that it reached, in attempts a minute. */
  attempts: z.int().positive(),
});
export type ClosedNetwork = z.output<typeof ClosedNetwork>;

/** A branch that its host accepts no connections to, until an instant that the host can extend. */
export const BranchBlock = z.strictObject({
  branch_id: z.uuid(),
  reason: BlockReason,
  /** By the host's clock, ISO 8601 UTC. */
  until: z.iso.datetime(),
  /** Only with the reason `attempts`; those that end last. */
  networks: z.array(ClosedNetwork).max(CLOSED_NETWORKS_MAX).optional(),
});
export type BranchBlock = z.output<typeof BranchBlock>;

/** All blocks of one project on its host: at most one of each reason for a branch. */
export const ProjectBlocks = z.strictObject({
  project_id: z.uuid(),
  /** By the host's clock, ISO 8601 UTC. */
  observed_at: z.iso.datetime(),
  blocks: z.array(BranchBlock).max(500),
});
export type ProjectBlocks = z.output<typeof ProjectBlocks>;
