import { and, eq, getTableColumns, type SQL, sql } from 'drizzle-orm';
import type { BatchResponse } from 'drizzle-orm/batch';
import { COUNTED_STATUSES } from '../../shared/branch/branch-status.ts';
import { type AppContext, databaseOf } from '../app-env.ts';
import type { Reach } from '../authentication/permissions.ts';
import type { Principal } from '../authentication/principal.ts';
import type { Database, Statement } from '../database/database.ts';
import { hosts, projectBranches, projects } from '../database/schema.ts';
import { ApiError } from '../errors.ts';
import { countUnknownProject, requireAdmission } from '../rate-limits/limit-requests.ts';
import { recordDeniedAccess } from './denied-access.ts';
import type { ProjectView } from './project-resource.ts';

/** The projects a principal can see at all. What is beyond looks like what does not exist. */
export const visible = ({ tenantId, userId }: Principal, reach: Reach): SQL | undefined =>
  and(eq(projects.tenantId, tenantId), reach === 'own' ? eq(projects.createdBy, userId) : undefined);

/** Branches of the row's project that count against its cap. */
const countedBranches = sql<number>`(select count(*) from ${projectBranches} where project_id = ${projects.id}
  and status in (${sql.join(
    COUNTED_STATUSES.map((status) => sql`${status}`),
    sql`, `,
  )}))`;

/** Under a name of its own: of two columns of one name, a batch on D1 gives one. */
const hostName = sql<string>`${hosts.name}`.as('host_name');

/** Projects as routes work with them. */
export const projectViews = (db: Database) =>
  db
    .select({ ...getTableColumns(projects), hostName, branchCount: countedBranches })
    .from(projects)
    .innerJoin(hosts, eq(hosts.id, projects.hostId));

/**
 * The project a request is about and the answers of `queries`, in one trip to D1 beside the limiter's verdict.
 * A handler that does anything with an effect calls this first.
 * @throws ApiError NOT_FOUND also for a project the bearer may not see, RATE_LIMITED
 */
export async function inProject<const Q extends readonly Statement[]>(
  c: AppContext,
  projectId: string,
  queries: (db: Database) => Q,
): Promise<[ProjectView, ...BatchResponse<Q>]> {
  const db = databaseOf(c);
  const theProject = and(eq(projects.id, projectId), visible(c.var.principal, c.var.reach));
  const [[views, ...answers]] = await Promise.all([
    db.batch([projectViews(db).where(theProject), ...queries(db)]),
    requireAdmission(c),
  ]);
  const [project] = views as ProjectView[];
  if (project) return [project, ...(answers as BatchResponse<Q>)];
  await countUnknownProject(c);
  recordDeniedAccess(c, 'project', projectId);
  throw new ApiError('NOT_FOUND');
}

/** The one row. @throws ApiError NOT_FOUND */
export function found<R>(rows: readonly R[]): R {
  const [row] = rows;
  if (row === undefined) throw new ApiError('NOT_FOUND');
  return row;
}
