import { and, eq, getTableColumns, type SQL, sql } from 'drizzle-orm';
import { COUNTED_STATUSES } from '../../shared/branch/branch-status.ts';
import type { Reach } from '../authentication/permissions.ts';
import type { Principal } from '../authentication/principal.ts';
import type { Database } from '../database/database.ts';
import { hosts, projectBranches, projects } from '../database/schema.ts';
import { ApiError } from '../errors.ts';

/** The projects a principal can see at all. What is beyond looks like what does not exist. */
export const visible = ({ tenantId, userId }: Principal, reach: Reach): SQL | undefined =>
  and(eq(projects.tenantId, tenantId), reach === 'own' ? eq(projects.createdBy, userId) : undefined);

/** The project as routes work with it, with its host; no row when the principal may not see it. */
export const visibleProject = (db: Database, principal: Principal, reach: Reach, projectId: string) =>
  db
    .select({ ...getTableColumns(projects), hostName: hosts.name, branchCount: countedBranches })
    .from(projects)
    .innerJoin(hosts, eq(hosts.id, projects.hostId))
    .where(and(eq(projects.id, projectId), visible(principal, reach)));

/** Branches of the row's project that count against its cap. */
export const countedBranches = sql<number>`(select count(*) from ${projectBranches} where project_id = ${projects.id}
  and status in (${sql.join(
    COUNTED_STATUSES.map((status) => sql`${status}`),
    sql`, `,
  )}))`;

/** The one row. @throws ApiError NOT_FOUND */
export function found<R>(rows: readonly R[]): R {
  const [row] = rows;
  if (row === undefined) throw new ApiError('NOT_FOUND');
  return row;
}
