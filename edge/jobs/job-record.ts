import { FAILURES } from '../../shared/failure/failures.ts';
import { publicFailure } from './job-failure.ts';
import type { JobRow } from './saga.ts';

/** The failure in the words of the API; what really happened is for the log. */
function publicError({ id, error }: JobRow) {
  const { code } = publicFailure(error ?? { code: '', message: '' }, id);
  return { code, message: FAILURES[code].message };
}

/** A job as the API shows it; its input stays inside. */
export const jobRecord = (row: JobRow) => ({
  id: row.id,
  project_id: row.projectId,
  branch_id: row.branchId,
  kind: row.kind,
  status: row.status,
  steps: row.steps,
  error: row.error && publicError(row),
  attempts: row.attempts,
  created_at: row.createdAt.toISOString(),
  updated_at: row.updatedAt.toISOString(),
});
