import { and, eq, ne, type SQL, sql } from 'drizzle-orm';
import { snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { Principal } from '../authentication/principal.ts';
import type { BranchContent, PreparedSource } from '../database/column-types.ts';
import { isNamed } from '../database/conditions.ts';
import type { Database } from '../database/database.ts';
import type { Requirement } from '../database/guarded-write.ts';
import { type BranchRow, projectBranches, type SnapshotRow, snapshots } from '../database/schema.ts';
import { missing } from '../missing.ts';
import { contentOf } from './branch.ts';
import { knownBranchesOf } from './branch-reference.ts';
import { cloneableSnapshot, latestSnapshot } from './snapshot.ts';

/** How long a clone waits for transactions of the source branch to end before it fails with `SOURCE_BUSY`. */
export const BUSY_WAIT_MS = 3000;

/** What is cloned: a branch, or a snapshot of one. */
export interface CloneSource {
  /** The branch; of a snapshot, the one that it was taken of. Null if that is deleted. */
  branchId: string | null;
  database: string;
  /** Null also for a snapshot that is to be made. */
  snapshot: { id: string; sizeBytes: number } | null;
  content: BranchContent;
  /** For another content than that of the branch `of`. */
  prepared: (PreparedSource & { of: BranchRow }) | null;
}

export const ofBranch = (branch: BranchRow): CloneSource => ({
  branchId: branch.id,
  database: branch.databaseName,
  snapshot: null,
  content: contentOf(branch),
  prepared: null,
});

/** @param isLeft whether the branch that it was taken of still exists */
export const ofSnapshot = (snapshot: SnapshotRow, isLeft: boolean): CloneSource => ({
  branchId: isLeft ? snapshot.branchId : null,
  database: snapshotDatabaseName(snapshot.id),
  snapshot: { id: snapshot.id, sizeBytes: snapshot.sizeBytes },
  content: contentOf(snapshot),
  prepared: null,
});

/** For work that clones it. */
export const onCloneable = (source: CloneSource): Requirement[] => {
  const { branchId, database, snapshot, prepared } = source;
  const of = prepared?.of ?? (branchId === null ? null : { id: branchId, databaseName: database });
  return [
    [isCloneable(source), 'SOURCE_NOT_ACTIVE'],
    ...(of && !snapshot ? [isNamed(of.id, of.databaseName)] : []),
  ];
};

/** Whether it can be cloned, as the records say. */
const isCloneable = ({ branchId, snapshot }: Pick<CloneSource, 'branchId' | 'snapshot'>): SQL =>
  snapshot
    ? sql`exists (select 1 from ${snapshots} where ${and(eq(snapshots.id, snapshot.id), eq(snapshots.status, 'ready'))})`
    : sql`exists (select 1 from ${projectBranches} where ${and(
        eq(projectBranches.id, branchId ?? ''),
        eq(projectBranches.status, 'active'),
        sql`${projectBranches.hold} is not 'import'`,
      )})`;

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
    /** For a named snapshot, the branch that it was taken of. */
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
    /** @returns or NOT_FOUND, NO_SNAPSHOT */
    source(branches: readonly BranchRow[], rows: readonly SnapshotRow[]): Result<CloneSource, Failure> {
      const [branch] = branches;
      const [snapshot] = rows;
      const isNamed = snapshotId !== undefined;
      if (isNamed ? !snapshot : !branch) return fail(missing(isNamed ? 'snapshot' : 'branch'));
      if (branch && !isFromSnapshot) return ok(ofBranch(branch));
      return snapshot ? ok(ofSnapshot(snapshot, branch !== undefined)) : fail({ code: 'NO_SNAPSHOT' });
    },
  };
}
