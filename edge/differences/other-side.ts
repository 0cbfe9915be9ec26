import { and, eq, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Params } from '../../shared/protocol/operations.ts';
import type { Principal } from '../authentication/principal.ts';
import { branchesOf, referencedBranch, referencedBranchId } from '../branches/branch-reference.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import type { Database } from '../database/database.ts';
import { projectBranches } from '../database/schema.ts';
import { snapshots } from '../database/snapshot-schema.ts';
import { ApiError, found } from '../errors.ts';
import type { Comparison } from '../jobs/job-input.ts';
import { snapshotsOf } from '../snapshots/snapshot-reference.ts';
import type { SnapshotRow } from '../snapshots/snapshot-resource.ts';

/** What a branch is compared with. */
export type OtherSide = { branch: BranchRow; snapshot: null } | { branch: null; snapshot: SnapshotRow };

const PARENT = 'parent';

type Caller = Pick<Principal, 'machine'>;

/**
 * The queries that find the other side of a comparison, which shows its rows: a caller that is limited to branches needs
 * both sides in its reach, although it may clone `main`.
 */
export function otherSideQueries(
  db: Database,
  { project_id: projectId, branch_ref: reference }: { project_id: string; branch_ref: string },
  against: string,
  caller: Caller,
) {
  const parentId = sql`(select parent_branch_id from ${projectBranches}
    where id = ${referencedBranchId(projectId, reference, caller)})`;
  const id = z.uuid().safeParse(against).success ? against.toLowerCase() : '';
  return [
    against === PARENT
      ? db
          .select()
          .from(projectBranches)
          .where(and(branchesOf(projectId, caller), eq(projectBranches.id, parentId)))
          .limit(1)
      : referencedBranch(db, projectId, against, caller),
    db
      .select()
      .from(snapshots)
      .where(and(snapshotsOf(projectId, caller), eq(snapshots.id, id))),
  ] as const;
}

/**
 * The other side in the results of the queries.
 * @throws ApiError NOT_FOUND, BRANCH_NOT_ACTIVE; SOURCE_NOT_ACTIVE if the branch has no parent any more
 */
export function otherSide(
  { parentBranchId }: BranchRow,
  against: string,
  branches: readonly BranchRow[],
  [snapshot]: readonly SnapshotRow[],
): OtherSide {
  if (against === PARENT && parentBranchId === null) throw new ApiError('SOURCE_NOT_ACTIVE');
  if (branches.length === 0 && snapshot) return { branch: null, snapshot };
  const named = found(branches);
  if (named.status !== 'active') throw new ApiError('BRANCH_NOT_ACTIVE');
  return { branch: named, snapshot: null };
}

/** As the record of a job names it. */
export const referenceOf = ({ branch, snapshot }: OtherSide): Comparison['against'] =>
  branch ? { branchId: branch.id } : { snapshotId: snapshot.id };

/** As the host knows it. */
export const onHost = ({ branch, snapshot }: OtherSide): Params<'branch.diff'>['against'] =>
  branch ? { branch_id: branch.id, database: branch.databaseName } : { snapshot_id: snapshot.id };
