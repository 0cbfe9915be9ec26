import { compareBranchJob } from '../branches/comparison.ts';
import { createBranchesJob } from '../branches/create-branches.ts';
import { deleteBranchJob } from '../branches/delete-branch.ts';
import { dropSnapshotJob } from '../branches/drop-snapshots.ts';
import { renameBranchJob } from '../branches/rename-branch.ts';
import { resetBranchJob } from '../branches/reset-branch.ts';
import { restoreBranchJob } from '../branches/restore-branch.ts';
import { takeSnapshotJob } from '../branches/take-snapshot.ts';
import { trialJob } from '../branches/trial.ts';
import { applyChangeJob } from '../changes/apply.ts';
import { rehearseChangeJob } from '../changes/rehearse.ts';
import { undoChangeJob } from '../changes/undo.ts';
import type { SagaTable } from '../jobs/saga.ts';
import { moveProjectJob } from '../moves/move.ts';
import { createProjectJob } from '../projects/create-project.ts';
import { deleteProjectJob } from '../projects/delete-project.ts';
import { cutOverJob, stopFollowingJob } from '../sources/end.ts';
import { startJob } from '../sources/start.ts';

/** What each kind of job does. */
export const SAGAS: SagaTable = {
  'project.create': createProjectJob,
  'branch.create': createBranchesJob,
  'branch.delete': deleteBranchJob,
  'branch.reset': resetBranchJob,
  'branch.restore': restoreBranchJob,
  'branch.rename': renameBranchJob,
  'branch.diff': compareBranchJob,
  'branch.try': trialJob,
  'change.rehearse': rehearseChangeJob,
  'change.apply': applyChangeJob,
  'change.undo': undoChangeJob,
  'branch.import': startJob,
  'follow.start': startJob,
  'follow.cutover': cutOverJob,
  'follow.stop': stopFollowingJob,
  'snapshot.create': takeSnapshotJob,
  'snapshot.delete': dropSnapshotJob,
  'project.delete': deleteProjectJob,
  'project.move': moveProjectJob,
};
