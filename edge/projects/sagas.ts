import { createBatchJob } from '../branches/create-batch.ts';
import { createBranchJob } from '../branches/create-branch.ts';
import { deleteBranchJob } from '../branches/delete-branch.ts';
import type { SagaTable } from '../jobs/saga.ts';
import { createProjectJob } from './create-project.ts';
import { deleteProjectJob } from './delete-project.ts';

/** What each kind of job does. */
export const SAGAS: SagaTable = {
  'project.create': createProjectJob,
  'branch.create': createBranchJob,
  'branch.create_batch': createBatchJob,
  'branch.delete': deleteBranchJob,
  'project.delete': deleteProjectJob,
};
