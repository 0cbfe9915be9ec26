import { and, eq, getTableColumns, type SQL, sql } from 'drizzle-orm';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { networkRules, projectBranches } from '../database/schema.ts';
import { snapshots } from '../database/snapshot-schema.ts';
import type { Settings } from '../settings.ts';
import { newSnapshot } from '../snapshots/take-snapshot.ts';
import { restorableBranchesOf } from './branch-reference.ts';
import type { BranchRow } from './branch-resource.ts';

/** A database that outlives its branch. */
export interface Keeping {
  snapshotId: string;
  until: Date;
}

/**
 * Whether the deletion of this branch can be undone, and until when. A branch with a lease cannot be restored: its holder
 * has said that it is disposable, and branches of machines would fill the host (`docs/decisions/0037-what-is-kept-and-for-how-long.md`).
 */
export function keepingOf(
  { UNDELETE_SECONDS }: Pick<Settings, 'UNDELETE_SECONDS'>,
  { status, leaseSeconds }: BranchRow,
  now: Date,
): Keeping | null {
  if (UNDELETE_SECONDS === 0 || leaseSeconds !== null) return null;
  if (status !== 'active' && status !== 'expired') return null;
  return { snapshotId: crypto.randomUUID(), until: new Date(now.getTime() + UNDELETE_SECONDS * 1000) };
}

/** Records the database that is kept, with the branch's rules. They precede the deletion of the rules. */
export function keepStatements(
  db: Database,
  branch: BranchRow,
  { snapshotId: id, until: expiresAt }: Keeping,
  condition: SQL,
  now: Date,
): Statement[] {
  const { cidr, description, source, branchId } = networkRules;
  const rules = sql`coalesce((
    select json_group_array(json_object('cidr', ${cidr}, 'description', ${description}, 'source', ${source}))
    from ${networkRules} where ${branchId} = ${branch.id}), '[]')`;
  return [
    insertIf(db, snapshots, newSnapshot({ id, kind: 'deleted', branch, expiresAt }, now), condition),
    db.update(snapshots).set({ rules }).where(eq(snapshots.id, id)),
  ];
}

/** The deleted branch, and its kept database, if there is one. */
export const keptBranch = (db: Database, projectId: string, branchId: string) =>
  [
    db
      .select()
      .from(projectBranches)
      .where(
        and(
          eq(projectBranches.projectId, projectId),
          eq(projectBranches.id, branchId),
          eq(projectBranches.status, 'deleted'),
        ),
      ),
    db
      .select()
      .from(snapshots)
      .where(and(eq(snapshots.branchId, branchId), eq(snapshots.kind, 'deleted'))),
  ] as const;

/** The database that is kept of a deleted branch in the caller's reach, once it is closed. */
export const keptDatabase = (
  db: Database,
  projectId: string,
  branchId: string,
  caller: Parameters<typeof restorableBranchesOf>[1],
) =>
  db
    .select(getTableColumns(snapshots))
    .from(snapshots)
    .innerJoin(projectBranches, eq(projectBranches.id, snapshots.branchId))
    .where(
      and(
        restorableBranchesOf(projectId, caller),
        eq(projectBranches.id, branchId.toLowerCase()),
        eq(snapshots.kind, 'deleted'),
        eq(snapshots.status, 'ready'),
      ),
    );
