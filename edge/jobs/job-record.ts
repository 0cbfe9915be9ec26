import type { JobRow } from './saga.ts';

/** A job as the API shows it; its input stays inside. */
export const jobRecord = (row: JobRow) => ({
  id: row.id,
  project_id: row.projectId,
  branch_id: row.branchId,
  kind: row.kind,
  status: row.status,
  steps: row.steps,
  error: row.error,
  attempts: row.attempts,
  created_at: row.createdAt.toISOString(),
  updated_at: row.updatedAt.toISOString(),
});
