import { and, eq, inArray, isNotNull, isNull, type SQL, sql } from 'drizzle-orm';
import { type BranchStatus, COUNTED_STATUSES } from '../../shared/branch/branch-status.ts';
import { BRANCHES_MAX } from '../../shared/limits.ts';
import type { Requirement } from '../database/guarded-write.ts';
import { projectBranches, projects } from '../database/schema.ts';
import type { Settings } from '../settings.ts';

/** A branch that counts against a limit of its project. Leased branches have their own. */
interface Counted {
  projectId: string;
  leaseSeconds: number | null;
}

/** Number of the project's branches with these statuses. */
const counting = (projectId: string, statuses: readonly BranchStatus[], which?: SQL): SQL =>
  sql`(select count(*) from ${projectBranches} where ${and(
    eq(projectBranches.projectId, projectId),
    inArray(projectBranches.status, statuses),
    which,
  )})`;

/** Seconds until the first of the counted branches frees its slot by itself; null if none will. */
const untilSlot = ({ projectId, leaseSeconds }: Counted): SQL => {
  const isLeased = leaseSeconds !== null;
  const end = isLeased ? projectBranches.leaseEndsAt : projectBranches.expiresAt;
  return sql`(select max(1, cast((min(${end}) - ${Date.now()}) / 1000.0 as integer) + 1) from ${projectBranches} where ${and(
    eq(projectBranches.projectId, projectId),
    inArray(projectBranches.status, COUNTED_STATUSES),
    (isLeased ? isNotNull : isNull)(projectBranches.leaseSeconds),
  )})`;
};

const hasSlots = (
  { projectId, leaseSeconds }: Counted,
  current: SQL,
  limit: SQL | number,
  count: number,
): Requirement => [
  sql`${current} + ${count} <= ${limit}`,
  {
    code: leaseSeconds === null ? 'BRANCH_LIMIT_REACHED' : 'LEASED_BRANCH_LIMIT_REACHED',
    fields: { limit, current, retry_after: untilSlot({ projectId, leaseSeconds }) },
  },
];

/** The limit that the branches count against leaves slots for `count` more. */
export function hasBranchSlots(
  branch: Counted,
  { LEASED_BRANCH_LIMIT }: Pick<Settings, 'LEASED_BRANCH_LIMIT'>,
  count: number,
): Requirement {
  const { projectId, leaseSeconds } = branch;
  const isCounted = leaseSeconds === null ? isNull : isNotNull;
  const current = counting(projectId, COUNTED_STATUSES, isCounted(projectBranches.leaseSeconds));
  const limit =
    leaseSeconds === null ? sql`branch_limit` : sql`coalesce(leased_branch_limit, ${LEASED_BRANCH_LIMIT})`;
  return hasSlots(branch, current, sql`(select ${limit} from ${projects} where id = ${projectId})`, count);
}

/** The project has room for the databases of `count` more branches. Expired branches have one, too. */
export const hasDatabaseSlots = (branch: Counted, count: number): Requirement =>
  hasSlots(branch, counting(branch.projectId, ['creating', 'active', 'expired']), BRANCHES_MAX, count);
