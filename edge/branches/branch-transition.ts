import { and, inArray, type SQL, sql } from 'drizzle-orm';
import { BRANCH_TRANSITIONS, type BranchEvent, statusesAllowing } from '../../shared/branch/branch-status.ts';
import type { Database, Statement } from '../database/database.ts';
import { projectBranches } from '../database/schema.ts';

/** The branches whose status allows the event. */
export const whereAllowed = (event: BranchEvent, branches: SQL | undefined) =>
  and(branches, inArray(projectBranches.status, statusesAllowing(event)));

/** Whether such a branch exists: the condition for statements that precede the event in one batch. */
export const isAllowed = (event: BranchEvent, branches: SQL | undefined): SQL =>
  sql`exists (select 1 from ${projectBranches} where ${whereAllowed(event, branches)})`;

/**
 * Applies the event to the branches whose status allows it.
 * @param deletesAt of branches that expire, or whose databases are kept
 */
export const transition = (
  db: Database,
  event: BranchEvent,
  branches: SQL | undefined,
  now: Date,
  deletesAt: SQL<Date> | null = null,
): Statement => {
  const { to } = BRANCH_TRANSITIONS[event];
  const deletion = to === 'deleted' ? { deletedAt: now } : {};
  return db
    .update(projectBranches)
    .set({ status: to, updatedAt: now, deletesAt, ...deletion })
    .where(whereAllowed(event, branches));
};
