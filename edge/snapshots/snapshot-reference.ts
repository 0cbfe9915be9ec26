import { and, desc, eq, inArray, ne, or, type SQL, sql } from 'drizzle-orm';
import type { Principal } from '../authentication/principal.ts';
import { whereMatches } from '../branches/branch-pattern.ts';
import type { Database } from '../database/database.ts';
import { projectBranches } from '../database/schema.ts';
import { snapshots } from '../database/snapshot-schema.ts';

type Caller = Pick<Principal, 'machine'>;

const ready = (projectId: string) =>
  and(eq(snapshots.projectId, projectId), eq(snapshots.status, 'ready'), ne(snapshots.kind, 'deleted'));

const ofMain = sql`exists (select 1 from ${projectBranches} where id = ${snapshots.branchId} and is_default)`;

/** Those of branches in the caller's reach. `main` is in no pattern. */
const ofPattern = ({ machine }: Caller): SQL | undefined =>
  machine?.branchPattern == null
    ? undefined
    : and(sql`not ${ofMain}`, whereMatches(machine.branchPattern, snapshots.branchName));

/** The project's snapshots that the caller may see and delete. */
export const snapshotsOf = (projectId: string, caller: Caller): SQL | undefined =>
  and(ready(projectId), ofPattern(caller));

/** Those that the caller may clone: the same, and those of `main`. */
const cloneable = (projectId: string, caller: Caller): SQL | undefined => {
  const pattern = ofPattern(caller);
  return and(ready(projectId), pattern && or(ofMain, pattern));
};

/** The snapshot with this id; no row if the caller may not clone it. */
export const cloneableSnapshot = (db: Database, projectId: string, id: string, caller: Caller) =>
  db
    .select()
    .from(snapshots)
    .where(and(cloneable(projectId, caller), eq(snapshots.id, id)));

/** The newest snapshot of the branch that its users or a schedule have taken. */
export const latestSnapshot = (db: Database, projectId: string, branch: SQL | undefined, caller: Caller) =>
  db
    .select()
    .from(snapshots)
    .where(
      and(
        cloneable(projectId, caller),
        inArray(snapshots.kind, ['manual', 'schedule']),
        sql`exists (select 1 from ${projectBranches} where ${and(
          eq(projectBranches.id, snapshots.branchId),
          eq(projectBranches.projectId, projectId),
          branch,
        )})`,
      ),
    )
    .orderBy(desc(snapshots.takenAt), desc(snapshots.id))
    .limit(1);
