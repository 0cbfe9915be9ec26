import { and, asc, desc, eq } from 'drizzle-orm';
import { z } from 'zod';
import { BranchName } from '../../shared/branch/branch-name.ts';
import { branchDatabaseName, DATABASE_NAME_MAX, maxSlugLength } from '../../shared/branch/database-name.ts';
import { DEFAULT_LIFESPAN, LifespanSpelling } from '../../shared/branch/lifespan.ts';
import { creatorNetwork } from '../access/creator-rule.ts';
import { KEY_FAILURES, keyUseOf, recordedUses } from '../api/idempotency-key.ts';
import { jsonBody, operation, operations, response } from '../api/operation.ts';
import { actorOf, connectingIp } from '../app-env.ts';
import type { Principal } from '../authentication/principal.ts';
import { matchesPattern } from '../branches/branch-pattern.ts';
import { knownBranchesOf } from '../branches/branch-reference.ts';
import { Branch, CreatedBranch, toBranchResponse } from '../branches/branch-resource.ts';
import { projectBranches } from '../database/schema.ts';
import { ApiError, unwrap } from '../errors.ts';
import { coordinatorOf } from '../projects/coordinator-stub.ts';
import { CreationHeaders, creationResponse, HOST_CREATION_FAILURES, PENDING, replay } from './creations.ts';
import { inBranch, inProject } from './in-project.ts';
import { BranchRefParams, ProjectParams } from './parameters.ts';

const tags = ['Branches'];

const NewBranch = z
  .strictObject({
    branch_name: BranchName,
    source_branch_id: z
      .uuid()
      .toLowerCase()
      .nullable()
      .default(null)
      .meta({ description: 'The branch to clone. Default: `main`.' }),
    lifespan: LifespanSpelling.default(DEFAULT_LIFESPAN),
  })
  .meta({ example: { branch_name: 'checkout-redesign', lifespan: '7d' } });

const BranchChange = z.strictObject({ lifespan: LifespanSpelling }).meta({ example: { lifespan: '1m' } });

const Lookup = z
  .strictObject({ name: z.string().max(100).optional(), id: z.uuid().toLowerCase().optional() })
  .refine(
    ({ name, id }) => (name === undefined) !== (id === undefined),
    'Provide exactly one of name and id.',
  );

const Deletion = z
  .strictObject({
    id: z.uuid(),
    status: z.literal('deleted'),
    deleted_at: z.iso.datetime(),
    job_id: z.uuid().meta({ description: 'The job that drops the database of the branch.' }),
  })
  .meta({ id: 'BranchDeletion' });

/** Before anything is read, because whether another name is taken is unknown to the caller too. */
function checkBranchName({ machine }: Principal, name: string): void {
  const pattern = machine?.branchPattern ?? null;
  if (pattern === null || matchesPattern(pattern, name)) return;
  throw new ApiError('NOT_FOUND', { message: `Not found. Choose a branch name that matches ${pattern}.` });
}

const router = operations();

router.openapi(
  operation({
    access: 'branch.change',
    machines: 'of_branches',
    operationId: 'createBranch',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches',
    summary: 'Create a branch',
    description:
      'Clones an active branch with copy-on-write. After a 201 response the credentials of the new branch work on both ports, and a network rule lets the address of the caller connect.',
    tags,
    request: { params: ProjectParams, headers: CreationHeaders, body: jsonBody(NewBranch) },
    responses: { 201: response('The new branch.', CreatedBranch, 'Idempotency-Replayed'), 202: PENDING },
    failures: [
      ...KEY_FAILURES,
      'DATABASE_NAME_TOO_LONG',
      'BRANCH_EXISTS',
      'PROJECT_NOT_ACTIVE',
      'STORAGE_QUOTA_EXCEEDED',
      'SOURCE_BUSY',
      'SOURCE_NOT_ACTIVE',
      'BRANCH_LIMIT_REACHED',
      ...HOST_CREATION_FAILURES,
    ],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const { prefer, 'idempotency-key': key } = c.req.valid('header');
    const body = c.req.valid('json');
    checkBranchName(c.var.principal, body.branch_name);
    const keyUse = await keyUseOf(c.var.principal, c.req.path, key, body);
    const wanted = body.source_branch_id
      ? eq(projectBranches.id, body.source_branch_id)
      : eq(projectBranches.isDefault, true);
    const [project, [source], uses] = await inProject(c, projectId, (db) => [
      db
        .select()
        .from(projectBranches)
        .where(and(knownBranchesOf(projectId, c.var.principal), wanted)),
      recordedUses(db, keyUse, new Date()),
    ]);
    const replayed = replay<z.input<typeof CreatedBranch>>(c, uses, keyUse);
    if (replayed) return replayed;
    const { length } = branchDatabaseName(project.appKey, project.env, body.branch_name);
    if (length > DATABASE_NAME_MAX) {
      const max_slug_length = maxSlugLength(project.appKey, project.env);
      throw new ApiError('DATABASE_NAME_TOO_LONG', { length, max_slug_length });
    }
    if (!source) throw new ApiError('NOT_FOUND');
    const outcome = await coordinatorOf(c.env, projectId).createBranch(
      {
        jobId: crypto.randomUUID(),
        branchId: crypto.randomUUID(),
        project,
        source,
        branchName: body.branch_name,
        lifespan: body.lifespan,
        creatorCidr: creatorNetwork(connectingIp(c)),
        actor: actorOf(c),
        keyUse,
      },
      prefer,
    );
    return creationResponse<z.input<typeof CreatedBranch>>(c, outcome);
  },
);

router.openapi(
  operation({
    access: 'branch.read',
    machines: 'of_branches',
    operationId: 'listBranches',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches',
    summary: 'List branches, `main` first, then the oldest first',
    tags,
    request: { params: ProjectParams },
    responses: {
      200: response('All branches that are not deleted.', z.strictObject({ branches: z.array(Branch) })),
    },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const [, branches] = await inProject(c, projectId, (db) => [
      db
        .select()
        .from(projectBranches)
        .where(knownBranchesOf(projectId, c.var.principal))
        .orderBy(desc(projectBranches.isDefault), asc(projectBranches.createdAt), asc(projectBranches.id)),
    ]);
    return c.json({ branches: branches.map(toBranchResponse) }, 200);
  },
);

router.openapi(
  operation({
    access: 'branch.read',
    machines: 'of_branches',
    operationId: 'lookUpBranch',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches/lookup',
    summary: 'Find a branch by name or by id',
    tags,
    request: { params: ProjectParams, query: Lookup },
    responses: {
      200: response(
        'The matching branches.',
        z.strictObject({
          matches: z.array(Branch),
          is_duplicate: z.boolean().meta({ description: 'A branch with that name or id exists.' }),
        }),
      ),
    },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const { id, name = '' } = c.req.valid('query');
    const wanted = id ? eq(projectBranches.id, id) : eq(projectBranches.branchName, name);
    const [, matches] = await inProject(c, projectId, (db) => [
      db
        .select()
        .from(projectBranches)
        .where(and(knownBranchesOf(projectId, c.var.principal), wanted)),
    ]);
    return c.json({ matches: matches.map(toBranchResponse), is_duplicate: matches.length > 0 }, 200);
  },
);

router.openapi(
  operation({
    access: 'branch.change',
    operationId: 'updateBranch',
    method: 'patch',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}',
    summary: 'Change the lifespan of a branch',
    description:
      'The new lifespan starts at the time of the request. An expired branch becomes active again, for which the project needs a free slot.',
    tags,
    request: { params: BranchRefParams, body: jsonBody(BranchChange) },
    responses: { 200: response('The updated branch.', Branch) },
    failures: ['BRANCH_PROTECTED', 'BRANCH_NOT_ACTIVE', 'STORAGE_QUOTA_EXCEEDED', 'BRANCH_LIMIT_REACHED'],
  }),
  async (c) => {
    const [project, branch] = await inBranch(c, c.req.valid('param'), () => []);
    const changed = await coordinatorOf(c.env, project.id).changeLifespan({
      branch,
      lifespan: c.req.valid('json').lifespan,
      hostId: project.hostId,
      actor: actorOf(c),
    });
    return c.json(toBranchResponse(unwrap(changed)), 200);
  },
);

router.openapi(
  operation({
    access: 'branch.change',
    operationId: 'deleteBranch',
    method: 'delete',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}',
    summary: 'Delete a branch',
    description: 'Its name can be reused immediately. The job of the response drops its database.',
    tags,
    request: { params: BranchRefParams },
    responses: { 202: response('The branch is deleted.', Deletion) },
    failures: ['BRANCH_PROTECTED'],
  }),
  async (c) => {
    const [project, branch] = await inBranch(c, c.req.valid('param'), () => []);
    const deleted = await coordinatorOf(c.env, project.id).deleteBranch({
      id: crypto.randomUUID(),
      projectId: project.id,
      branchId: branch.id,
      hostId: project.hostId,
      actor: actorOf(c),
    });
    const job = unwrap(deleted);
    const deleted_at = job.createdAt.toISOString();
    return c.json({ id: branch.id, status: 'deleted' as const, deleted_at, job_id: job.id }, 202);
  },
);

export const branchRoutes = router;
