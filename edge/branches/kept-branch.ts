import { and, eq, type SQL, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { Principal } from '../authentication/principal.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import {
  type BranchRow,
  networkRules,
  projectBranches,
  type SnapshotRow,
  snapshots,
} from '../database/schema.ts';
import type { Settings } from '../settings.ts';
import { matchesPattern } from '../tenancy/branch-pattern.ts';
import { newSnapshot } from './snapshot.ts';

/** A database that outlives its branch. */
export interface Keeping {
  snapshotId: string;
  until: Date;
}

/**
 * Whether the deletion of this branch can be undone, and until when. A branch with a lease cannot be
 * restored: its holder has said that it is disposable, and branches of machines would fill the host
 * (`docs/decisions/snapshots.md`).
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

/**
 * Records the database that is kept, with the branch's rules, except for those that would expire. They
 * precede the deletion of the rules.
 */
export function keepStatements(
  db: Database,
  branch: BranchRow,
  { snapshotId: id, until: expiresAt }: Keeping,
  condition: SQL,
  now: Date,
): Statement[] {
  const { cidr, description, source, via, branchId, expiresAt: end } = networkRules;
  const rules = sql`coalesce((
    select json_group_array(json_object('cidr', ${cidr}, 'description', ${description}, 'source', ${source}, 'via', ${via}))
    from ${networkRules} where ${branchId} = ${branch.id} and ${end} is null), '[]')`;
  return [
    insertIf(db, snapshots, newSnapshot({ id, kind: 'deleted', branch, expiresAt }, now), condition),
    db.update(snapshots).set({ rules }).where(eq(snapshots.id, id)),
  ];
}

/**
 * Whether this caller may purge a branch that is deleted already.
 * @returns or NOT_FOUND; HOST_BUSY while the job of its deletion runs
 */
export function checkPurgeable(
  { machine }: Pick<Principal, 'machine'>,
  branch: BranchRow,
  { status }: SnapshotRow,
): Result<null, Failure> {
  const pattern = machine?.branchPattern ?? null;
  if (pattern !== null && !matchesPattern(pattern, branch.branchName)) return fail({ code: 'NOT_FOUND' });
  return status === 'ready' ? ok(null) : fail({ code: 'HOST_BUSY' });
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
