import { and, eq, inArray, isNotNull, isNull, type SQL, sql } from 'drizzle-orm';
import { type BranchStatus, COUNTED_STATUSES } from '../../shared/branch/branch-status.ts';
import type { Failure, FailureCode } from '../../shared/failures.ts';
import { projectBranches } from '../database/schema.ts';
import type { Settings } from '../settings.ts';

/** The limit that a branch counts against. Leased branches have their own. */
export interface BranchLimit {
  /** Number of the project's branches that count. */
  current: SQL<number>;
  /** In a query on projects. */
  limit: SQL<number>;
  code: FailureCode;
}

const counting = (projectId: string, statuses: readonly BranchStatus[], which?: SQL) =>
  sql<number>`(select count(*) from ${projectBranches} where ${and(
    eq(projectBranches.projectId, projectId),
    inArray(projectBranches.status, statuses),
    which,
  )})`;

/** The project's branches with a database, expired ones included: at most `BRANCHES_MAX`. */
export const branchesOnHost = (projectId: string): SQL<number> =>
  counting(projectId, ['creating', 'active', 'expired']);

export function branchLimitOf(
  { projectId, leaseSeconds }: { projectId: string; leaseSeconds: number | null },
  settings: Pick<Settings, 'LEASED_BRANCH_LIMIT'>,
): BranchLimit {
  const counted = (leased: SQL) => counting(projectId, COUNTED_STATUSES, leased);
  if (leaseSeconds === null)
    return {
      current: counted(isNull(projectBranches.leaseSeconds)),
      limit: sql`branch_limit`,
      code: 'BRANCH_LIMIT_REACHED',
    };
  return {
    current: counted(isNotNull(projectBranches.leaseSeconds)),
    limit: sql`coalesce(leased_branch_limit, ${settings.LEASED_BRANCH_LIMIT})`,
    code: 'LEASED_BRANCH_LIMIT_REACHED',
  };
}

/** Whether the limit leaves room for `count` more, in a query on projects. */
export const hasSlots = ({ current, limit }: BranchLimit, count: number): SQL =>
  sql`${current} + ${count} <= ${limit}`;

export const branchLimitReached = (
  { code }: BranchLimit,
  { limit, current }: { limit: number; current: number },
): Failure => ({ code, fields: { limit, current, retry_after: null } });
