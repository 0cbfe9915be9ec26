import { and, eq, getTableColumns, or } from 'drizzle-orm';
import { jobsInReach } from '../branches/branch-reference.ts';
import { jobs, projects } from '../database/schema.ts';
import { found } from '../errors.ts';
import { Job, toJobResponse } from '../jobs/job-resource.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import { operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { isOwn } from '../tenancy/project-access.ts';
import { auditDenial, inProject, JobParams, ProjectParams } from './in-project.ts';

const tags = ['Jobs'];

const router = operations();

router.openapi(
  operation({
    access: 'jobs.read',
    machines: 'of_branches',
    operationId: 'listJobs',
    method: 'get',
    path: '/api/v1/projects/{project_id}/jobs',
    summary: 'List the jobs of a project, newest first',
    tags,
    request: { params: ProjectParams, query: PageQuery },
    responses: { 200: response('A page of jobs.', pageOf('jobs', Job)) },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const query = c.req.valid('query');
    const { orderBy, beyond } = keyset(jobs, 'newest_first', query);
    const [, rows] = await inProject(c, projectId, (db) => [
      db
        .select()
        .from(jobs)
        .where(and(eq(jobs.projectId, projectId), jobsInReach(c.var.principal), beyond))
        .orderBy(...orderBy)
        .limit(query.limit + 1),
    ]);
    const { page, next_cursor } = cutPage(rows, query);
    return c.json({ jobs: page.map(toJobResponse), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'jobs.read',
    machines: 'of_branches',
    operationId: 'getJob',
    method: 'get',
    path: '/api/v1/jobs/{job_id}',
    summary: 'Get a job',
    description: 'Jobs remain available after their project has been deleted.',
    tags,
    request: { params: JobParams },
    responses: { 200: response('The job.', Job) },
  }),
  async (c) => {
    const { userId, tenantId, machine } = c.var.principal;
    const { job_id: jobId } = c.req.valid('param');
    const db = databaseOf(c);
    const own = or(eq(jobs.createdBy, userId), isOwn(db, userId));
    const rows = await db
      .select(getTableColumns(jobs))
      .from(jobs)
      .leftJoin(projects, eq(projects.id, jobs.projectId))
      .where(
        and(
          eq(jobs.id, jobId),
          eq(jobs.tenantId, tenantId),
          c.var.reach === 'own' ? own : undefined,
          machine?.projectId ? eq(jobs.projectId, machine.projectId) : undefined,
          jobsInReach(c.var.principal),
        ),
      );
    if (rows.length === 0) auditDenial(c, 'job', jobId);
    return c.json(toJobResponse(found(rows)), 200);
  },
);

export const jobRoutes = router;
