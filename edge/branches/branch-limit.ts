import { and, eq, inArray, isNotNull, type SQL, sql } from 'drizzle-orm';
import { COUNTED_STATUSES } from '../../shared/branch/branch-status.ts';
import { isLive } from '../database/conditions.ts';
import type { Requirement } from '../database/guarded-write.ts';
import { projectBranches, projects } from '../database/schema.ts';
import type { Settings } from '../settings.ts';

/** Number of the project's branches that count against its limit. */
const counted = (projectId: string, which?: SQL): SQL =>
  sql`(select count(*) from ${projectBranches} where ${and(
    eq(projectBranches.projectId, projectId),
    isLive,
    inArray(projectBranches.status, COUNTED_STATUSES),
    which,
  )})`;

/**
 * The branch limit of the project leaves places for `count` more branches (specification 8). Leased branches count like all
 * others, except as many as the operator allows on top (`LEASED_BRANCH_LIMIT`).
 * @param leaseSeconds of the new branches; null: they have no lease
 */
export function hasBranchSlots(
  { projectId, leaseSeconds }: { projectId: string; leaseSeconds: number | null },
  { LEASED_BRANCH_LIMIT }: Pick<Settings, 'LEASED_BRANCH_LIMIT'>,
  count: number,
): Requirement {
  const current = counted(projectId);
  const leased = sql`${counted(projectId, isNotNull(projectBranches.leaseSeconds))} + ${leaseSeconds === null ? 0 : count}`;
  const limit = sql`(select branch_limit + min(coalesce(leased_branch_limit, ${LEASED_BRANCH_LIMIT}), ${leased})
    from ${projects} where id = ${projectId})`;
  return [
    sql`${current} + ${count} <= ${limit}`,
    { code: 'BRANCH_LIMIT_REACHED', fields: { limit, current, retry_after: null } },
  ];
}
