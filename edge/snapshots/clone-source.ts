import { and, eq, type SQL, sql } from 'drizzle-orm';
import { snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import { projectBranches } from '../database/schema.ts';
import { snapshots } from '../database/snapshot-schema.ts';
import type { SnapshotRow } from './snapshot-resource.ts';

/** What is cloned: a branch, or a snapshot of one. */
export interface CloneSource {
  /** The branch; of a snapshot, the one that it was taken of. Null if that is deleted. */
  branchId: string | null;
  database: string;
  snapshot: { id: string; sizeBytes: number } | null;
}

export const ofBranch = ({ id, databaseName }: BranchRow): CloneSource => ({
  branchId: id,
  database: databaseName,
  snapshot: null,
});

/** @param isLeft whether the branch that it was taken of still exists */
export const ofSnapshot = ({ id, branchId, sizeBytes }: SnapshotRow, isLeft: boolean): CloneSource => ({
  branchId: isLeft ? branchId : null,
  database: snapshotDatabaseName(id),
  snapshot: { id, sizeBytes },
});

/** Whether it can be cloned, as the records say. */
export const isCloneable = ({ branchId, snapshot }: CloneSource): SQL =>
  snapshot
    ? sql`exists (select 1 from ${snapshots} where ${and(eq(snapshots.id, snapshot.id), eq(snapshots.status, 'ready'))})`
    : sql`exists (select 1 from ${projectBranches} where ${and(
        eq(projectBranches.id, branchId ?? ''),
        eq(projectBranches.status, 'active'),
      )})`;
