import type { BranchMeasurement, ProjectMeasurement } from '../../../shared/measurement.ts';

/** What is counted since a branch was made, of one that has done nothing. */
export const NOTHING_COUNTED = {
  cpu_seconds: 0,
  total_connections: 0,
  transactions_committed: 0,
  transactions_rolled_back: 0,
  rows_fetched: 0,
  rows_inserted: 0,
  rows_updated: 0,
  rows_deleted: 0,
};

/** All that is measured of such a branch. */
export const NOTHING_MEASURED = {
  ...NOTHING_COUNTED,
  active_connections: 0,
  database_size_bytes: 0,
  file_count: 0,
  cache_hit_ratio: null,
  memory_bytes: 0,
  longest_query_seconds: 0,
  connection_wait_seconds: 0,
  dead_tuple_ratio: null,
  following_lag_seconds: null,
};

/** A measurement as a host sends it. @param branches by id, what differs from nothing */
export const measurementOf = (
  project_id: string,
  observedAt: number,
  branches: Record<string, Partial<BranchMeasurement>>,
): ProjectMeasurement => ({
  project_id,
  observed_at: new Date(observedAt).toISOString(),
  branches: Object.entries(branches).map(([branch_id, values]) => ({
    ...NOTHING_MEASURED,
    branch_id,
    ...values,
  })),
});
