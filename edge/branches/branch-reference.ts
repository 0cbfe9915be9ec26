import { and, desc, eq, or, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Principal } from '../authentication/principal.ts';
import { isLive } from '../database/conditions.ts';
import type { Database } from '../database/database.ts';
import { jobs, projectBranches, snapshots } from '../database/schema.ts';
import { whereMatches } from '../tenancy/branch-pattern.ts';

type Caller = Pick<Principal, 'machine'>;

/** `main` is never meant, whatever the pattern. */
const matching = ({ machine }: Caller): SQL | undefined =>
  machine?.branchPattern == null
    ? undefined
    : and(
        eq(projectBranches.isDefault, false),
        whereMatches(machine.branchPattern, projectBranches.branchName),
      );

const notDeleted = (projectId: string) => and(eq(projectBranches.projectId, projectId), isLive);

/** The project's branches that the caller may use: deleted ones stay for the audit log only. */
export const branchesOf = (projectId: string, caller: Caller): SQL | undefined =>
  and(notDeleted(projectId), matching(caller));

/** The branches whose record the caller may see, and that it may clone: those of `branchesOf`, and `main`. */
export function knownBranchesOf(projectId: string, caller: Caller): SQL | undefined {
  const ofPattern = matching(caller);
  return and(notDeleted(projectId), ofPattern && or(eq(projectBranches.isDefault, true), ofPattern));
}

/** Deleted branches whose databases are kept. */
export const restorableBranchesOf = (projectId: string, caller: Caller): SQL | undefined =>
  and(
    eq(projectBranches.projectId, projectId),
    eq(projectBranches.status, 'deleted'),
    sql`exists (select 1 from ${snapshots} where ${snapshots.branchId} = ${projectBranches.id} and kind = 'deleted')`,
    matching(caller),
  );

/**
 * The jobs of these branches, deleted ones included, and those that the caller itself started. Every branch
 * of a batch has to be in reach.
 */
export function jobsInReach(caller: Caller): SQL | undefined {
  const ofPattern = matching(caller);
  if (!ofPattern) return undefined;
  const ids = sql`coalesce(json_extract(${jobs.input}, '$.branchIds'), json_array(${jobs.branchId}))`;
  const inReach = and(sql`${projectBranches.id} in (select value from json_each(${ids}))`, ofPattern);
  return or(
    sql`(select count(*) from ${projectBranches} where ${inReach}) = json_array_length(${ids})`,
    // A refused creation leaves no record of its branch.
    sql`json_extract(${jobs.input}, '$.actor.machine.id') = ${caller.machine?.id}`,
  );
}
export const hasLabel = ({ name, value }: { name: string; value: string }): SQL =>
  sql`exists (select 1 from json_each(${projectBranches.labels}) as label where label.key = ${name} and label.value = ${value})`;

/** Failed branches can have the same name as a working one, which then comes first. */
const REFERENCED_FIRST = sql`status = 'failed'`;

const referenced = (
  projectId: string,
  reference: string,
  caller: Caller,
  among = branchesOf,
): SQL | undefined =>
  and(
    among(projectId, caller),
    z.uuid().safeParse(reference).success
      ? eq(projectBranches.id, reference.toLowerCase())
      : eq(projectBranches.branchName, reference),
  );

/**
 * The branch that `:branch_ref` names by ID or name (specification 4.3); no row if it is deleted, or not in
 * reach. Failed branches can have the same name as a working one, which then comes first.
 */
export const referencedBranch = (db: Database, projectId: string, reference: string, caller: Caller) =>
  db
    .select()
    .from(projectBranches)
    .where(referenced(projectId, reference, caller))
    .orderBy(REFERENCED_FIRST, desc(projectBranches.createdAt))
    .limit(1);

/** The same for what clones the branch: `main` too, whatever the pattern. */
export const clonedBranch = (db: Database, projectId: string, reference: string, caller: Caller) =>
  db
    .select()
    .from(projectBranches)
    .where(referenced(projectId, reference, caller, knownBranchesOf))
    .orderBy(REFERENCED_FIRST, desc(projectBranches.createdAt))
    .limit(1);

/** The id of that branch, for a query that joins the batch of the one above. */
export const referencedBranchId = (
  projectId: string,
  reference: string,
  caller: Caller,
  among = branchesOf,
): SQL =>
  sql`(select id from ${projectBranches} where ${referenced(projectId, reference, caller, among)}
    order by ${REFERENCED_FIRST}, created_at desc limit 1)`;
