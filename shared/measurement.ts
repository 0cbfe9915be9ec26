import { z } from 'zod';
import { BRANCHES_MAX } from './limits.ts';

const Count = z.int().nonnegative();

/**
 * Compute metrics of a branch (specification 2.7): totals since its creation, except for the active
 * connections.
 */
const Compute = z.strictObject({
  cpu_seconds: z.number().nonnegative(),
  active_connections: Count,
  total_connections: Count,
  transactions_committed: Count,
  transactions_rolled_back: Count,
  rows_fetched: Count,
  rows_inserted: Count,
  rows_updated: Count,
  rows_deleted: Count,
});

const Ratio = z.number().min(0).max(1);
const Seconds = z.number().nonnegative();

/** Metrics of one branch at one instant. */
export const BranchMeasurement = Compute.extend({
  branch_id: z.uuid(),
  database_size_bytes: Count,
  /** Files of the database on the host; null: an agent of an earlier release does not count them. */
  file_count: Count.nullable(),
  /** Share of blocks found in memory among those read since the last measurement; null when none was read. */
  cache_hit_ratio: Ratio.nullable(),
  /** Private memory of its sessions; null where the host does not allow to read it. */
  memory_bytes: Count.nullable(),
  /** Longest that a statement was seen running since the last measurement. */
  longest_query_seconds: Seconds,
  /** Longest that a client now waits for a connection of the pooler; null while the pooler is away. */
  connection_wait_seconds: Seconds.nullable(),
  /** Share of dead rows in its tables, at most an hour old; null when it is not known. */
  dead_tuple_ratio: Ratio.nullable(),
  /** How far it is behind the database that it follows; null: it follows none, or that is not known. */
  following_lag_seconds: Seconds.nullable(),
});
export type BranchMeasurement = z.output<typeof BranchMeasurement>;

/** Metrics of all branches of one project on their host, measured together. */
export const ProjectMeasurement = z.strictObject({
  project_id: z.uuid(),
  /** By the host's clock, ISO 8601 UTC. */
  observed_at: z.iso.datetime(),
  branches: z.array(BranchMeasurement).max(BRANCHES_MAX),
  /** Branches and snapshots, by id; left out where the file system cannot say it. */
  disk: z
    .array(z.strictObject({ id: z.uuid(), own_bytes: Count, shared_bytes: Count }))
    .max(2 * BRANCHES_MAX)
    .optional(),
  /** When `disk` was measured, by the host's clock, ISO 8601 UTC. */
  disk_measured_at: z.iso.datetime().optional(),
  /**
   * What the branches take together of the disk, counting shared blocks once, and their sizes when that was
   * measured. Left out where clones share no blocks, or the file system does not tell.
   */
  physical: z.strictObject({ bytes: Count, sizes: z.record(z.uuid(), Count) }).optional(),
});
export type ProjectMeasurement = z.output<typeof ProjectMeasurement>;

/**
 * Present size of each database of a project in bytes, by branch. A database that takes too long to size is
 * missing.
 */
export const ProjectSizes = z.strictObject({
  project_id: z.uuid(),
  sizes: z.record(z.uuid(), Count),
});
export type ProjectSizes = z.output<typeof ProjectSizes>;
