import { and, eq, inArray, notInArray } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { Database } from '../database/database.ts';
import { jobs, projectBranches } from '../database/schema.ts';
import { branchIdsOf, OPEN_STATUSES } from '../jobs/job-store.ts';
import type { BranchRequest } from '../projects/coordinator-rpc.ts';
import type { CreationProgress } from '../projects/creation-progress.ts';
import { type BranchRow, toCreatedBranchResponse } from './branch-resource.ts';

interface Existing {
  branch: BranchRow;
  /** The open job that creates it; undefined for a branch that is complete. */
  creation: string | undefined;
}

/** The branch that has the name which a request wants. */
export async function existingBranch(
  db: Database,
  { project, branches }: BranchRequest,
): Promise<Existing | null> {
  const [[branch], open] = await db.batch([
    db
      .select()
      .from(projectBranches)
      .where(
        and(
          eq(projectBranches.projectId, project.id),
          eq(projectBranches.branchName, branches[0]?.name ?? ''),
          // As in the unique index.
          notInArray(projectBranches.status, ['deleted', 'failed']),
        ),
      ),
    db
      .select()
      .from(jobs)
      .where(and(eq(jobs.projectId, project.id), inArray(jobs.status, OPEN_STATUSES))),
  ]);
  if (!branch) return null;
  const creation = open.find((job) => branchIdsOf(job).includes(branch.id))?.id;
  return { branch, creation: branch.status === 'creating' ? creation : undefined };
}

/** The response with an existing branch. A branch of another source is none for this request. */
export function returnExisting(branch: BranchRow, request: BranchRequest): Result<CreationProgress, Failure> {
  if (branch.status === 'deleting') return fail({ code: 'PROJECT_NOT_ACTIVE' });
  const { branchId, database } = request.source;
  // Snapshots of one branch have the same parent, and a name can be another branch's by now.
  const isSame = branch.parentBranchId === branchId && branch.sourceDatabase === database;
  if (!isSame) return fail({ code: 'BRANCH_EXISTS' });
  return ok({ response: { status: 200, body: { ...toCreatedBranchResponse(branch), created: false } } });
}
