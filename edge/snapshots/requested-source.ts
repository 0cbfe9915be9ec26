import { and, eq, ne, sql } from 'drizzle-orm';
import type { Principal } from '../authentication/principal.ts';
import { knownBranchesOf } from '../branches/branch-reference.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import type { Database } from '../database/database.ts';
import { projectBranches } from '../database/schema.ts';
import { snapshots } from '../database/snapshot-schema.ts';
import { ApiError, found } from '../errors.ts';
import { type CloneSource, ofBranch, ofSnapshot } from './clone-source.ts';
import { cloneableSnapshot, latestSnapshot } from './snapshot-reference.ts';
import type { SnapshotRow } from './snapshot-resource.ts';

/** What a request names as the source of a branch. */
interface Wanted {
  source_branch_id: string | null;
  snapshot_id?: string | undefined;
  from?: 'latest_snapshot' | undefined;
}

type Caller = Pick<Principal, 'machine'>;

/** The queries that find the source of a new branch, and the source in their results. */
export function sourceQueries(projectId: string, wanted: Wanted, caller: Caller) {
  const { source_branch_id: branchId, snapshot_id: snapshotId, from } = wanted;
  const theBranch = branchId ? eq(projectBranches.id, branchId) : eq(projectBranches.isDefault, true);
  const isFromSnapshot = snapshotId !== undefined || from !== undefined;
  return {
    /** Of a named snapshot: the branch that it was taken of. */
    branches: (db: Database) =>
      snapshotId === undefined
        ? db
            .select()
            .from(projectBranches)
            .where(and(knownBranchesOf(projectId, caller), theBranch))
        : db
            .select()
            .from(projectBranches)
            .where(
              and(
                eq(projectBranches.projectId, projectId),
                ne(projectBranches.status, 'deleted'),
                sql`${projectBranches.id} = (select branch_id from ${snapshots} where id = ${snapshotId})`,
              ),
            ),
    snapshots: (db: Database) =>
      snapshotId === undefined
        ? latestSnapshot(db, projectId, theBranch, caller)
        : cloneableSnapshot(db, projectId, snapshotId, caller),
    /** @throws ApiError NOT_FOUND, NO_SNAPSHOT */
    source(branches: readonly BranchRow[], rows: readonly SnapshotRow[]): CloneSource {
      if (!isFromSnapshot) return ofBranch(found(branches));
      if (snapshotId !== undefined) return ofSnapshot(found(rows), branches.length > 0);
      found(branches);
      const [latest] = rows;
      if (!latest) throw new ApiError('NO_SNAPSHOT');
      return ofSnapshot(latest, true);
    },
  };
}
