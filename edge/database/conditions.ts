import { and, eq, not, type SQL, sql } from 'drizzle-orm';
import type { JobStatus } from '../../shared/project/job.ts';
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

export const OPEN_STATUSES = ['queued', 'running'] as const satisfies readonly JobStatus[];

/** SQLite uses the index of live branches only for this very condition, so it is literal and joins any other status. */
export const isLive: SQL = sql`${projectBranches.status} <> 'deleted'`;

/**
 * SQLite uses the index of open jobs only if it knows the statuses when it plans, so they are no parameters.
 */
export const isOpenJob: SQL = sql`${jobs.status} in (${sql.raw(OPEN_STATUSES.map((status) => `'${status}'`).join(', '))})`;

/** A move of a project to another host. Literal too, for the index of moves. */
export const isMove: SQL = sql`${jobs.kind} = 'project.move'`;

/** Moves that are under way, as what a subquery selects from. */
export const openMoves = sql`${moves} join ${jobs} on ${jobs.id} = ${moves.jobId} and ${isOpenJob}`;

/** For work with the databases of a project: not while it moves to another host. */
export const isUnmoving = (projectId: string) =>
  [
    sql`not exists (select 1 from ${openMoves} where ${moves.projectId} = ${projectId})`,
    'PROJECT_MOVING',
  ] as const satisfies Requirement;

const isRename = and(isOpenJob, eq(jobs.kind, 'branch.rename'));

/** For work that takes names. A name that a rename under way leaves is not free: the rename can be undone. */
export const isUnrenamed = (projectId: string, names: readonly string[]) =>
  [
    sql`not ${isThere(
      jobs,
      and(
        eq(jobs.projectId, projectId),
        isRename,
        sql`json_extract(${jobs.input}, '$.former.name') in (select value from json_each(${JSON.stringify(names)}))`,
      ),
    )}`,
    'HOST_BUSY',
  ] as const satisfies Requirement;

/**
 * For work that knows the branch by its database: not while that gets another name.
 * @param database as the request read it, which the branch still has to have; left out: the work reads it later
 */
export const isNamed = (branchId: string, database?: string) =>
  [
    sql`not ${isThere(jobs, and(eq(jobs.branchId, branchId), isRename))} and ${
      database === undefined
        ? sql`true`
        : isThere(
            projectBranches,
            and(eq(projectBranches.id, branchId), eq(projectBranches.databaseName, database)),
          )
    }`,
    'HOST_BUSY',
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
