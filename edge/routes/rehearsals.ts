import { eq, sql } from 'drizzle-orm';
import { z } from 'zod';
import { LockLimits, Rehearsal as RehearsalRecord } from '../../shared/protocol/rehearsal-operations.ts';
import { isProjectMoving } from '../database/conditions.ts';
import type { Database } from '../database/database.ts';
import { hosts, projects } from '../database/schema.ts';
import { follows } from '../database/source-schema.ts';
import { ApiError } from '../errors.ts';
import { missing } from '../missing.ts';
import { type AppContext, actorOf } from '../pipeline/context.ts';
import { operation, operations, optionalJsonBody, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { auditedWork } from './audited-work.ts';
import { BranchRefParams, HOST_FAILURES, inBranch, usableBranch } from './in-project.ts';

const tags = ['Rehearsals'];

/** From when on a lock is a danger. */
export const DEFAULT_LIMITS = { lock_ms: 1_000, table_bytes: 104_857_600 };

const Limits = z
  .strictObject({
    lock_ms: z.int().min(100).max(3_600_000).default(DEFAULT_LIMITS.lock_ms),
    table_bytes: z
      .int()
      .min(0)
      .max(2 ** 50)
      .default(DEFAULT_LIMITS.table_bytes),
  })
  .default(DEFAULT_LIMITS)
  .meta({
    description:
      'An `ACCESS EXCLUSIVE` lock is a danger if it is held at least this long on a table of at least this size.',
  });

const NewRehearsal = z.strictObject({ limits: Limits }).meta({ example: { limits: DEFAULT_LIMITS } });

const Rehearsal = RehearsalRecord.extend({
  limits: LockLimits,
  report: RehearsalRecord.shape.report.meta({
    description:
      'Null while the rehearsal is running. `dangers` are long locks on large tables, rewritten tables, and tables that lost rows. `schema` is what has changed since the start. Counts of rows are exact as far as the time allowed.',
  }),
  server_version: z.string().nullable().meta({
    description:
      'Version of PostgreSQL on the database host, whose plans and locks the report is about. Null: not reported yet.',
    example: '18.1',
  }),
  source_version: z.string().nullable().meta({
    description:
      'Version of the database that `main` follows or has followed. Its plans and locks may differ. Null: none.',
    example: '15.18',
  }),
}).meta({ id: 'Rehearsal' });

/** Versions of the server of the rehearsal, and of the database that `main` comes from. */
export const versionsOf = (db: Database, projectId: string) =>
  db
    .select({
      server_version: sql<string | null>`json_extract(${hosts.description}, '$.postgres_version')`,
      source_version: sql<string | null>`json_extract(${follows.source}, '$.version')`,
    })
    .from(projects)
    .innerJoin(hosts, eq(hosts.id, projects.hostId))
    .leftJoin(follows, eq(follows.projectId, projects.id))
    .where(eq(projects.id, projectId));

/** The branch of `branchOf` and the versions, read in one trip. @throws ApiError */
async function rehearsedBranch(c: AppContext, params: { project_id: string; branch_ref: string }) {
  const [project, branch, [versions]] = await inBranch(c, params, (db) => [
    versionsOf(db, params.project_id),
  ]);
  return {
    ...usableBranch(c, project, branch, 'read'),
    versions: versions ?? { server_version: null, source_version: null },
  };
}

const router = operations();

router.openapi(
  operation({
    access: 'branch.change',
    operationId: 'startRehearsal',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/rehearsal',
    summary: 'Start to watch what a migration does to a branch',
    description:
      'Records the tables, the number of their rows and the schema, and samples the locks of all sessions of the branch every 50 ms, for at most an hour. Only a branch with a lease can be rehearsed. A branch has one rehearsal: starting it again begins a new one.',
    tags,
    request: { params: BranchRefParams, body: optionalJsonBody(NewRehearsal) },
    responses: { 201: response('The rehearsal.', Rehearsal) },
    failures: [...HOST_FAILURES, 'BRANCH_NOT_LEASED', 'PROJECT_MOVING'],
  }),
  async (c) => {
    const params = c.req.valid('param');
    const { limits } = c.req.valid('json');
    const { branch, database, call, versions } = await rehearsedBranch(c, params);
    if (branch.leaseSeconds === null) throw new ApiError('BRANCH_NOT_LEASED');
    // The host that watches has no clients of the branch any more when the project has moved.
    if (await isProjectMoving(databaseOf(c), params.project_id)) throw new ApiError('PROJECT_MOVING');
    const about = { projectId: params.project_id, branchId: branch.id, metadata: limits };
    const started = await auditedWork(
      databaseOf(c),
      actorOf(c),
      { ...about, name: 'rehearsal.started' },
      async () => ({ result: await call('rehearsal.start', { ...database, limits }), metadata: limits }),
    );
    return c.json({ ...started, ...versions }, 201);
  },
);

router.openapi(
  operation({
    access: 'rows.read',
    operationId: 'getRehearsal',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/rehearsal',
    summary: 'Get the rehearsal of a branch',
    tags,
    request: { params: BranchRefParams },
    responses: { 200: response('The rehearsal, with its report when it is finished.', Rehearsal) },
    failures: HOST_FAILURES,
  }),
  async (c) => {
    const { database, call, versions } = await rehearsedBranch(c, c.req.valid('param'));
    const { rehearsal } = await call('rehearsal.read', database);
    if (!rehearsal) throw ApiError.of(missing('rehearsal'));
    return c.json({ ...rehearsal, ...versions }, 200);
  },
);

router.openapi(
  operation({
    access: 'branch.change',
    operationId: 'finishRehearsal',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/rehearsal/finish',
    summary: 'Finish the rehearsal of a branch, and get its report',
    description: 'Repeated, it returns the same report.',
    tags,
    request: { params: BranchRefParams },
    responses: { 200: response('The rehearsal with its report.', Rehearsal) },
    failures: HOST_FAILURES,
  }),
  async (c) => {
    const params = c.req.valid('param');
    const { branch, database, call, versions } = await rehearsedBranch(c, params);
    const about = { projectId: params.project_id, branchId: branch.id, metadata: {} };
    const rehearsal = await auditedWork(
      databaseOf(c),
      actorOf(c),
      { ...about, name: 'rehearsal.finished' },
      async () => {
        const { rehearsal: finished } = await call('rehearsal.finish', database);
        const { verdict, dangers } = finished?.report ?? {};
        return { result: finished, metadata: finished && { verdict, dangers: dangers?.length } };
      },
    );
    if (!rehearsal) throw ApiError.of(missing('rehearsal'));
    return c.json({ ...rehearsal, ...versions }, 200);
  },
);

export const rehearsalRoutes = router;
