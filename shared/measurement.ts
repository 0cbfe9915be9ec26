import { z } from 'zod';

const Count = z.int().nonnegative();

/** Compute metrics of a branch (spec 2.7): but for the connections of this moment, totals since it was made. */
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

/** One branch at one moment. */
export const BranchMeasurement = Compute.extend({
  branch_id: z.uuid(),
  database_size_bytes: Count,
  /** Blocks found in memory out of those read since the measurement before; null when none was read. */
  cache_hit_ratio: z.number().min(0).max(1).nullable(),
});
export type BranchMeasurement = z.output<typeof BranchMeasurement>;

/** All branches of one project on their host, measured together. */
export const ProjectMeasurement = z.strictObject({
  project_id: z.uuid(),
  /** By the host's clock, ISO 8601 UTC. */
  observed_at: z.iso.datetime(),
  branches: z.array(BranchMeasurement).max(100),
});
export type ProjectMeasurement = z.output<typeof ProjectMeasurement>;
