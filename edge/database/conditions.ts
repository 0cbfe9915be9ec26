import { and, eq, type SQL, sql } from 'drizzle-orm';
import { missing } from '../missing.ts';
import { isThere } from './database.ts';
import type { Requirement } from './guarded-write.ts';
import { projectBranches, projects, type users } from './schema.ts';

/** The project, branch or user may have moved to another tenant since it was read. */
export const isOfTenant = (
  table: typeof projects | typeof projectBranches | typeof users,
  id: string,
  tenantId: string,
): SQL => isThere(table, and(eq(table.id, id), eq(table.tenantId, tenantId)));

const isActive = (table: typeof projects | typeof projectBranches, id: string): SQL =>
  isThere(table, and(eq(table.id, id), eq(table.status, 'active')));

/** For a write that makes something in a project, or works with one of its branches. */
export const inActiveProject = (projectId: string, tenantId: string) =>
  [
    [isOfTenant(projects, projectId, tenantId), missing('project')],
    [isActive(projects, projectId), 'PROJECT_NOT_ACTIVE'],
  ] as const satisfies readonly Requirement[];

/** For a write to a branch: not while it follows a database elsewhere. */
export const isUnfollowed = (branchId: string) =>
  [
    sql`not ${isThere(projectBranches, and(eq(projectBranches.id, branchId), eq(projectBranches.hold, 'following')))}`,
    'BRANCH_FOLLOWING',
  ] as const satisfies Requirement;

/** For a write that works with an active branch. Its tenant is that of its project. */
export const onActiveBranch = ({ id, projectId }: { id: string; projectId: string }, tenantId: string) =>
  [
    ...inActiveProject(projectId, tenantId),
    [isActive(projectBranches, id), 'BRANCH_NOT_ACTIVE'],
  ] as const satisfies readonly Requirement[];
