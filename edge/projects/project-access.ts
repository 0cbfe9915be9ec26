import { and, eq, getTableColumns, type SQL, sql } from 'drizzle-orm';
import type { BatchResponse } from 'drizzle-orm/batch';
import { COUNTED_STATUSES } from '../../shared/branch/branch-status.ts';
import type { Reach } from '../authentication/permissions.ts';
import type { Principal } from '../authentication/principal.ts';
import type { Database, Statement } from '../database/database.ts';
import { hosts, projectBranches, projects } from '../database/schema.ts';
import type { ProjectView } from './project-resource.ts';

/** The projects that a principal can see. All others appear not to exist. */
export const visible = ({ tenantId, userId }: Principal, reach: Reach): SQL | undefined =>
  and(eq(projects.tenantId, tenantId), reach === 'own' ? eq(projects.createdBy, userId) : undefined);

/** Number of the project's branches that count against its branch limit. */
const countedBranches = sql<number>`(select count(*) from ${projectBranches} where project_id = ${projects.id}
  and lease_seconds is null and status in (${sql.join(
    COUNTED_STATUSES.map((status) => sql`${status}`),
    sql`, `,
  )}))`;

/** With a name of its own, because a batch on D1 returns only one of two columns with the same name. */
const hostName = sql<string>`${hosts.name}`.as('host_name');

/** Projects with everything that a response shows. */
export const projectViews = (db: Database) =>
  db
    .select({ ...getTableColumns(projects), hostName, branchCount: countedBranches })
    .from(projects)
    .innerJoin(hosts, eq(hosts.id, projects.hostId));

/** Reads the project and the results of `queries` in one batch. @returns null if the principal cannot see it */
export async function readProject<const Q extends readonly Statement[]>(
  db: Database,
  { principal, reach }: { principal: Principal; reach: Reach },
  projectId: string,
  queries: Q,
): Promise<[ProjectView, ...BatchResponse<Q>] | null> {
  const theProject = and(eq(projects.id, projectId), visible(principal, reach));
  const [views, ...results] = await db.batch([projectViews(db).where(theProject), ...queries]);
  const [project] = views as ProjectView[];
  return project ? [project, ...(results as BatchResponse<Q>)] : null;
}
