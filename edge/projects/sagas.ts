import { createBatchJob } from '../branches/create-batch.ts';
import { createBranchJob } from '../branches/create-branch.ts';
import { deleteBranchJob } from '../branches/delete-branch.ts';
import { resetBranchJob } from '../branches/reset-branch.ts';
import { restoreBranchJob } from '../branches/restore-branch.ts';
import { compareBranchJob } from '../differences/compare-branch.ts';
import type { SagaTable } from '../jobs/saga.ts';
import { dropSnapshotJob } from '../snapshots/drop-snapshots.ts';
import { takeSnapshotJob } from '../snapshots/take-snapshot.ts';
import { createProjectJob } from './create-project.ts';
import { deleteProjectJob } from './delete-project.ts';

/** What each kind of job does. */
export const SAGAS: SagaTable = {
  'project.create': createProjectJob,
  'branch.create': createBranchJob,
  'branch.create_batch': createBatchJob,
  'branch.delete': deleteBranchJob,
  'branch.reset': resetBranchJob,
  'branch.restore': restoreBranchJob,
  'branch.diff': compareBranchJob,
  'snapshot.create': takeSnapshotJob,
  'snapshot.delete': dropSnapshotJob,
  'project.delete': deleteProjectJob,
};
