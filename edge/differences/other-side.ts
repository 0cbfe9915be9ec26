import { and, eq } from 'drizzle-orm';
import { z } from 'zod';
import type { Params } from '../../shared/protocol/operations.ts';
import type { Principal } from '../authentication/principal.ts';
import { referencedBranch } from '../branches/branch-reference.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import type { Database } from '../database/database.ts';
import { snapshots } from '../database/snapshot-schema.ts';
import { ApiError, found } from '../errors.ts';
import type { Comparison } from '../jobs/job-input.ts';
import { snapshotsOf } from '../snapshots/snapshot-reference.ts';
import type { SnapshotRow } from '../snapshots/snapshot-resource.ts';

/** What a branch is compared with. */
export type OtherSide = { branch: BranchRow; snapshot: null } | { branch: null; snapshot: SnapshotRow };

const PARENT = 'parent';

/**
 * The other side of a comparison, which shows its rows: a caller that is limited to branches needs both sides in its
 * reach, although it may clone `main`.
 * @throws ApiError NOT_FOUND, BRANCH_NOT_ACTIVE; SOURCE_NOT_ACTIVE if the branch has no parent any more
 */
export async function otherSide(
  db: Database,
  branch: BranchRow,
  against: string,
  caller: Pick<Principal, 'machine'>,
): Promise<OtherSide> {
  const { projectId, parentBranchId } = branch;
  if (against === PARENT && parentBranchId === null) throw new ApiError('SOURCE_NOT_ACTIVE');
  const reference = against === PARENT ? (parentBranchId ?? '') : against;
  const id = z.uuid().safeParse(reference).success ? reference.toLowerCase() : '';
  const [branches, [snapshot]] = await db.batch([
    referencedBranch(db, projectId, reference, caller),
    db
      .select()
      .from(snapshots)
      .where(and(snapshotsOf(projectId, caller), eq(snapshots.id, id))),
  ]);
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
