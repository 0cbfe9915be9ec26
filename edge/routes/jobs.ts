import { and, eq, getTableColumns, or } from 'drizzle-orm';
import { Hono } from 'hono';
import { type AppEnv, databaseOf } from '../app-env.ts';
import { allow } from '../authentication/permissions.ts';
import { jobs, projects } from '../database/schema.ts';
import { jobRecord } from '../jobs/job-record.ts';
import { cutPage, keyset, PageQuery } from '../pagination.ts';
import { found, visibleProject } from '../projects/project-access.ts';
import { readId, readQuery } from '../requests.ts';

/** Under `/api/v1/projects/:project_id/jobs`. */
export const projectJobRoutes = new Hono<AppEnv>().get('/', async (c) => {
  const reach = allow(c.var.principal, 'jobs.read');
  const projectId = readId(c, 'project_id');
  const query = readQuery(c, PageQuery);
  const db = databaseOf(c);
  const { orderBy, beyond } = keyset(jobs, 'newest_first', query);
  const [projectRows, rows] = await db.batch([
    visibleProject(db, c.var.principal, reach, projectId),
    db
      .select()
      .from(jobs)
      .where(and(eq(jobs.projectId, projectId), beyond))
      .orderBy(...orderBy)
      .limit(query.limit + 1),
  ]);
  found(projectRows);
  const { page, next_cursor } = cutPage(rows, query);
  return c.json({ jobs: page.map(jobRecord), next_cursor });
});

/** Under `/api/v1/jobs`: a job can still be read when its project is gone. */
export const jobRoutes = new Hono<AppEnv>().get('/:job_id', async (c) => {
  const { principal } = c.var;
  const reach = allow(principal, 'jobs.read');
  const own = or(eq(jobs.createdBy, principal.userId), eq(projects.createdBy, principal.userId));
  const rows = await databaseOf(c)
    .select(getTableColumns(jobs))
    .from(jobs)
    .leftJoin(projects, eq(projects.id, jobs.projectId))
    .where(
      and(
        eq(jobs.id, readId(c, 'job_id')),
        eq(jobs.tenantId, principal.tenantId),
        reach === 'own' ? own : undefined,
      ),
    );
  return c.json(jobRecord(found(rows)));
});
