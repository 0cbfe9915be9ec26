import { and, eq, not, type SQL, sql } from 'drizzle-orm';
import { missing } from '../missing.ts';
import { type Database, isThere } from './database.ts';
import type { Requirement } from './guarded-write.ts';
import { moves } from './move-schema.ts';
import { jobs, projectBranches, projects, type users } from './schema.ts';

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

/** For work with the databases of a project: not while it moves to another host. */
export const isUnmoving = (projectId: string) =>
  [
    sql`not exists (select 1 from ${moves} join ${jobs} on ${jobs.id} = ${moves.jobId}
      where ${moves.projectId} = ${projectId} and ${jobs.status} in ('queued', 'running'))`,
    'PROJECT_MOVING',
  ] as const satisfies Requirement;

/** Whether the project moves to another host now. */
export async function isProjectMoving(db: Database, projectId: string): Promise<boolean> {
  const [isUnmoved] = isUnmoving(projectId);
  const found = await db
    .select({ id: projects.id })
    .from(projects)
    .where(and(eq(projects.id, projectId), not(isUnmoved)));
  return found.length > 0;
}

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
