import { and, eq, exists, getTableColumns, or, type SQL, sql } from 'drizzle-orm';
import type { BatchResponse } from 'drizzle-orm/batch';
import { COUNTED_STATUSES } from '../../shared/branch/branch-status.ts';
import type { Reach } from '../authentication/permissions.ts';
import type { Principal } from '../authentication/principal.ts';
import type { StoredBlock } from '../branches/branch-blocks.ts';
import type { Database, Statement } from '../database/database.ts';
import { projectMembers } from '../database/people-schema.ts';
import { hosts, projectBranches, projects } from '../database/schema.ts';
import { ApiError } from '../errors.ts';
import type { ProjectView } from './project-resource.ts';

/** How the project is shared with the user, as a subquery of a query on projects. */
const shareOf = (db: Database, userId: string) =>
  db
    .select({ role: projectMembers.role })
    .from(projectMembers)
    .where(and(eq(projectMembers.projectId, projects.id), eq(projectMembers.userId, userId)));

/** Whether the user created the project or it is shared with them. */
export const isOwn = (db: Database, userId: string): SQL | undefined =>
  or(eq(projects.createdBy, userId), exists(shareOf(db, userId)));

/** The projects that a principal can see. All others appear not to exist. */
export const visible = (
  db: Database,
  { tenantId, userId, machine }: Principal,
  reach: Reach,
): SQL | undefined =>
  and(
    eq(projects.tenantId, tenantId),
    reach === 'own' ? isOwn(db, userId) : undefined,
    machine?.projectId ? eq(projects.id, machine.projectId) : undefined,
  );

/** Whether the principal may only see the project, because it is shared with them for viewing. */
const isViewOnly = (db: Database, { userId }: Principal, reach: Reach) =>
  reach === 'all'
    ? sql<number>`0`
    : sql<number>`${projects.createdBy} <> ${userId} and ${shareOf(db, userId)} = 'viewer'`;

/** The project's branches that count against a limit of branches, as the end of a query. */
const countedBranches = sql`where project_id = ${projects.id}
  and status in (${sql.join(
    COUNTED_STATUSES.map((status) => sql`${status}`),
    sql`, `,
  )})`;

/** Without the leased ones, which have a limit of their own. */
const branchCount = sql<number>`(select count(*) from ${projectBranches} ${countedBranches} and lease_seconds is null)`;

const blocks =
  sql`(select json_group_array(json(block.value)) from ${projectBranches}, json_each(blocks) as block ${countedBranches})`.mapWith(
    (blocks: string): StoredBlock[] => JSON.parse(blocks),
  );

/** With a name of its own, because a batch on D1 returns only one of two columns with the same name. */
const hostName = sql<string>`${hosts.name}`.as('host_name');

/** Projects with everything that a response shows. */
export const projectViews = (db: Database) =>
  db
    .select({ ...getTableColumns(projects), hostName, branchCount, blocks })
    .from(projects)
    .innerJoin(hosts, eq(hosts.id, projects.hostId));

interface Permission {
  principal: Principal;
  reach: Reach;
  isChange: boolean;
}

/**
 * Reads the project and the results of `queries` in one batch.
 * @returns null if the principal cannot see it
 * @throws ApiError FORBIDDEN if the principal may see it and nothing more, and the action takes more
 */
export async function readProject<const Q extends readonly Statement[]>(
  db: Database,
  { principal, reach, isChange }: Permission,
  projectId: string,
  queries: Q,
): Promise<[ProjectView, ...BatchResponse<Q>] | null> {
  const theProject = and(eq(projects.id, projectId), visible(db, principal, reach));
  const [views, viewOnly, ...results] = await db.batch([
    projectViews(db).where(theProject),
    db
      .select({ id: projects.id })
      .from(projects)
      .where(and(theProject, isViewOnly(db, principal, reach))),
    ...queries,
  ]);
  const [project] = views as ProjectView[];
  if (!project) return null;
  if (isChange && viewOnly.length > 0) {
    throw new ApiError('FORBIDDEN', { required: 'project role operator' }, 'shared for viewing');
  }
  return [project, ...(results as BatchResponse<Q>)];
}
