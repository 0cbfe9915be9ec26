import { and, eq, inArray, type SQL, sql } from 'drizzle-orm';
import { COUNTED_STATUSES } from '../../shared/branch/branch-status.ts';
import type { Failure } from '../../shared/failures.ts';
import { projectBranches, projects } from '../database/schema.ts';

/** Number of the project's branches that count against its limit. */
export const countedBranches = (projectId: string): SQL<number> =>
  sql`(select count(*) from ${projectBranches} where ${and(eq(projectBranches.projectId, projectId), inArray(projectBranches.status, COUNTED_STATUSES))})`;

export const hasBranchSlot = (projectId: string): SQL =>
  sql`exists (select 1 from ${projects} where id = ${projectId} and ${countedBranches(projectId)} < branch_limit)`;

export const branchLimitReached = ({ limit, current }: { limit: number; current: number }): Failure => ({
  code: 'BRANCH_LIMIT_REACHED',
  fields: { limit, current, retry_after: null },
});
